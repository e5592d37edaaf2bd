//! Sharing sessions.

use super::*;
use crate::model::session::Share;

fn dev() -> SessionRef {
    "dev".parse().expect("a name")
}

fn alices() -> SessionRef {
    "dev.alice".parse().expect("a name")
}

fn user(name: &str) -> UserName {
    name.parse().expect("a name")
}

fn share(world: &mut World, with: &str, how: Share) -> Output {
    world.must(Input::ShareSession(caller("alice"), dev(), user(with), how))
}

/// What each kind of share lets its user do, and what it does not.
#[test]
fn a_share_reaches_as_far_as_it_says() {
    let mut world = World::new(&["n1"]);
    world.open("alice", open("dev", gpus(1)));
    let may = |world: &World, who: &str, call: Call| {
        let state = world.broker.state();
        state.session_for(&caller(who), &alices(), call).is_ok()
    };
    let all = [
        Call::GetSession,
        Call::WatchSession,
        Call::OpenStream,
        Call::ExtendSession,
        Call::StopSession,
        Call::RemoveSession,
        Call::ShareSession,
    ];
    assert!(all.iter().all(|call| !may(&world, "bob", *call)));
    for how in [Share::ReadOnly, Share::Full] {
        share(&mut world, "bob", how);
        for call in all {
            let allowed = call.needs().share.is_some();
            assert_eq!(may(&world, "bob", call), allowed, "{call:?} {how:?}");
        }
    }
    // By id as by name; and it is nobody else's.
    let state = world.broker.state();
    assert!(
        state
            .session_for(&caller("bob"), &SessionRef::Id(SessionId(1)), Call::GetSession)
            .is_ok()
    );
    assert!(!may(&world, "carol", Call::GetSession));
    // A role lets one see it, and not enter it.
    assert!(may(&world, "ops", Call::GetSession) && !may(&world, "root", Call::OpenStream));

    world.must(Input::UnshareSession(caller("alice"), dev(), user("bob")));
    assert!(all.iter().all(|call| !may(&world, "bob", *call)));
    let again = Input::UnshareSession(caller("alice"), dev(), user("bob"));
    assert_eq!(
        world.handle(again).expect_err("not shared").kind,
        RejectKind::NotFound
    );
}

/// The nodes on which a session runs hear of each change at once.
#[test]
fn nodes_are_told_when_shares_change() {
    let mut world = World::new(&["n1"]);
    world.open("alice", open("dev", gpus(1)));
    let told = Effect::SendDesired(node("n1"));
    assert!(share(&mut world, "bob", Share::Full).effects.contains(&told));
    let repeated = share(&mut world, "bob", Share::Full);
    assert!(repeated.effects.is_empty() && repeated.changes.is_empty());
    // A key of somebody it is shared with is a way in, too.
    let key = world.must(Input::AddSshKey(caller("bob"), "ssh-ed25519 AAAA".into()));
    assert!(key.effects.contains(&told));
    let back = world.must(Input::UnshareSession(caller("alice"), dev(), user("bob")));
    assert!(back.effects.contains(&told));
    world.restart(9);
    assert!(world.broker.state().sessions[&SessionId(1)].shares.is_empty());
}

#[test]
fn sharing_makes_sense_or_is_refused() {
    let mut world = World::new(&[]);
    let refused = |world: &mut World, by: &str, with: &str| {
        let input = Input::ShareSession(caller(by), alices(), user(with), Share::Full);
        world.handle(input).expect_err("refused").kind
    };
    assert_eq!(refused(&mut world, "alice", "bob"), RejectKind::NotFound);
    let mut world = World::new(&["n1"]);
    world.open("alice", open("dev", gpus(1)));
    assert_eq!(refused(&mut world, "alice", "alice"), RejectKind::Invalid);
    assert_eq!(refused(&mut world, "alice", "nobody"), RejectKind::NotFound);
    // Who it is shared with cannot share it on.
    share(&mut world, "bob", Share::Full);
    assert_eq!(refused(&mut world, "bob", "bob"), RejectKind::Denied);
    for number in 0..64 {
        let name = format!("u{number}");
        let former = world.broker.state().users[&user("bob")].clone();
        world.must(Input::PutUser(
            None,
            User {
                name: user(&name),
                uid: 5000 + number,
                ..(*former).clone()
            },
        ));
        if number < 63 {
            share(&mut world, &name, Share::ReadOnly);
        }
    }
    assert_eq!(refused(&mut world, "alice", "u63"), RejectKind::Exhausted);
    // How far it goes can still be changed.
    share(&mut world, "bob", Share::ReadOnly);
}
