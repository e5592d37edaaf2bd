//! API tokens and sign-ins.

use std::net::{IpAddr, Ipv4Addr};

use super::rights::log;
use super::*;
use crate::model::audit::Action;
use crate::model::user::{ApiToken, Role, Scope, User};

const HERE: Origin = Origin::Remote(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
const THERE: Origin = Origin::Remote(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));

pub(super) fn token(world: &World, number: u32, user: &str) -> ApiToken {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.to_be_bytes());
    ApiToken {
        id: format!("t{number}").into(),
        hash,
        user: user.parse().expect("a name"),
        label: String::new(),
        scope: Scope::Full,
        by_sign_in: false,
        created: world.now,
        expires: world.now.after(Duration::from_hours(24)),
        last_used: None,
    }
}

fn user_name(name: &str) -> UserName {
    name.parse().expect("a name")
}

fn sign_in(token: ApiToken) -> Input {
    sign_in_as(token, None, None)
}

fn sign_in_as(token: ApiToken, newcomer: Option<User>, role: Option<Role>) -> Input {
    Input::SignIn(Box::new(SignIn {
        method: "SSH key SHA256:abc".into(),
        origin: HERE,
        newcomer,
        role,
        token: ApiToken {
            by_sign_in: true,
            ..token
        },
    }))
}

fn count(world: &World, action: Action) -> usize {
    log(world).iter().filter(|record| record.action == action).count()
}

/// A use is kept once an hour at most; the first, and one from elsewhere, are sign-ins in the log.
#[test]
fn the_last_use_is_known_roughly() {
    let mut world = World::new(&[]);
    let made = token(&world, 1, "alice");
    world.must(Input::CreateToken(caller("alice"), made));
    let used = |world: &mut World, from: Origin| world.must(Input::UseToken("t1".into(), from)).changes.len();
    assert_eq!(used(&mut world, HERE), 2);
    assert_eq!(used(&mut world, HERE), 0, "within the hour");
    assert_eq!(used(&mut world, THERE), 0, "within the hour");
    world.wait(Duration::from_hours(1));
    assert_eq!(used(&mut world, HERE), 1, "kept, and no sign-in");
    world.wait(Duration::from_hours(1));
    assert_eq!(used(&mut world, THERE), 2);
    assert_eq!(count(&world, Action::SignIn), 2);
    let known = world.broker.state().tokens["t1"].last_used.clone();
    assert_eq!(known, Some((world.now, THERE)));
    assert_eq!(world.must(Input::UseToken("gone".into(), HERE)).changes.len(), 0);
}

#[test]
fn tokens_of_others_are_administrators() {
    let mut world = World::new(&[]);
    let made = token(&world, 1, "alice");
    for who in ["bob", "ops"] {
        let refused = world.handle(Input::CreateToken(caller(who), made.clone()));
        let reject = refused.expect_err("refused");
        assert_eq!(reject.kind, RejectKind::Denied);
        assert!(reject.message.contains("admin"), "{reject}");
    }
    world.must(Input::CreateToken(caller("root"), made));
    // Another's token is not there for who may not end it.
    let revoke = |who: &str| Input::RevokeToken(caller(who), "t1".into());
    assert_eq!(
        world.handle(revoke("ops")).expect_err("refused").kind,
        RejectKind::NotFound
    );
    world.must(revoke("root"));
    assert!(world.broker.state().tokens.is_empty() && world.broker.state().token_hashes.is_empty());
    assert_eq!(count(&world, Action::TokenRevoke), 1);
}

/// Sign-ins push out what former sign-ins left, and never what was made by hand.
#[test]
fn a_user_s_tokens_are_limited() {
    let mut world = World::new(&[]);
    for number in 0..60 {
        let made = token(&world, number, "alice");
        world.must(Input::CreateToken(caller("alice"), made));
    }
    for number in 100..120 {
        world.wait(Duration::from_secs(1));
        let made = token(&world, number, "alice");
        world.must(sign_in(made));
    }
    let tokens = &world.broker.state().tokens;
    assert_eq!(tokens.len(), 64);
    assert_eq!(tokens.values().filter(|token| !token.by_sign_in).count(), 60);
    assert!(tokens.contains_key("t119") && !tokens.contains_key("t100"));
    let made = token(&world, 200, "alice");
    let refused = world.handle(Input::CreateToken(caller("alice"), made));
    assert_eq!(refused.expect_err("full").kind, RejectKind::Exhausted);
    let made = token(&world, 200, "bob");
    world.must(Input::CreateToken(caller("bob"), made));
}

#[test]
fn a_sign_in_is_noted_once() {
    let mut world = World::new(&[]);
    let made = token(&world, 3, "alice");
    world.must(sign_in(made));
    assert_eq!(count(&world, Action::SignIn), 1);
    assert!(
        log(&world)
            .iter()
            .all(|record| !record.detail.contains("carrel_"))
    );
    let nobody = token(&world, 4, "nobody");
    assert!(world.handle(sign_in(nobody)).is_err());
    // Its first use is no second sign-in.
    let before = count(&world, Action::SignIn);
    world.must(Input::UseToken("t3".into(), HERE));
    assert_eq!(count(&world, Action::SignIn), before);
}

/// Who is new gets a record with the sign-in, under a user id of their own, and only then.
#[test]
fn a_sign_in_brings_the_record_of_who_is_new() {
    let mut world = World::new(&[]);
    let alice = (*world.broker.state().users[&user_name("alice")]).clone();
    let nina = User {
        name: user_name("nina"),
        uid: 200_000,
        gid: 200_000,
        ..alice.clone()
    };
    let made = token(&world, 1, "nina");
    let same_uid = User {
        uid: alice.uid,
        ..nina.clone()
    };
    let refused = world.handle(sign_in_as(made.clone(), Some(same_uid), None));
    assert_eq!(refused.expect_err("refused").kind, RejectKind::AlreadyExists);
    // Another's record does not make one known.
    assert!(world.handle(sign_in_as(made.clone(), Some(alice), None)).is_err());
    assert!(!world.broker.state().users.contains_key(&nina.name));
    let before = count(&world, Action::UserPut);
    world.must(sign_in_as(made, Some(nina.clone()), Some(Role::Operator)));
    let kept = &world.broker.state().users[&nina.name];
    assert_eq!((kept.uid, kept.role), (nina.uid, Role::Operator));
    assert_eq!(count(&world, Action::UserPut), before + 1);
    assert_eq!(count(&world, Action::UserRole), 0);
    // A record that is there stays as it is.
    let moved = User {
        uid: 7,
        ..nina.clone()
    };
    let made = token(&world, 2, "nina");
    world.must(sign_in_as(made, Some(moved), None));
    let kept = &world.broker.state().users[&nina.name];
    assert_eq!((kept.uid, kept.role), (nina.uid, Role::Operator));
}

/// Where a sign-in says the role, it holds at once, and the log has it.
#[test]
fn a_sign_in_may_bring_a_role() {
    let mut world = World::new(&[]);
    let role = |world: &World| world.broker.state().users[&user_name("alice")].role;
    let before = role(&world);
    for (number, wanted, expected, logged) in [
        (1, None, before, 0),
        (2, Some(Role::Admin), Role::Admin, 1),
        (3, Some(Role::Admin), Role::Admin, 1),
        (4, Some(Role::User), Role::User, 2),
    ] {
        let made = token(&world, number, "alice");
        world.must(sign_in_as(made, None, wanted));
        assert_eq!(role(&world), expected);
        assert_eq!(count(&world, Action::UserRole), logged);
    }
}
