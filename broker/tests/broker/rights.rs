//! The table of rights, call by call, as the program keeps it.

use carrel_core::broker::Call;
use carrel_core::model::user::{Role, Scope};
use carrel_proto::v1;
use tonic::{Code, Status};

use crate::daemon::{Daemon, TokenClient, hint};

/// Makes a call that asks for nothing in particular. How it was refused, if it was.
pub async fn make(client: &mut TokenClient, call: Call) -> Option<Status> {
    macro_rules! calls {
        ($($call:ident $method:ident;)*) => {
            match call {
                $(Call::$call => client.$method(tonic::Request::new(Default::default())).await.err(),)*
            }
        };
    }
    calls! {
        GetCluster get_cluster;
        PlanSession plan_session;
        SubmitJob submit_job;
        RequeueJob requeue_job;
        CancelJob cancel_job;
        SignalJob signal_job;
        WatchJob watch_job;
        OpenLog open_log;
        UpdateJob update_job;
        OpenSession open_session;
        GetSession get_session;
        WatchSession watch_session;
        ListSessions list_sessions;
        ExtendSession extend_session;
        StopSession stop_session;
        RemoveSession remove_session;
        ShareSession share_session;
        UnshareSession unshare_session;
        OpenStream open_stream;
        SignSshKey sign_ssh_key;
        GetJob get_job;
        ListJobs list_jobs;
        ListHistory list_history;
        GetUsage get_usage;
        ExplainJob explain_job;
        ListNodes list_nodes;
        ListFound list_found;
        AdoptFound adopt_found;
        EndFound end_found;
        CreateNodeToken create_node_token;
        UpdateNode update_node;
        CreateToken create_token;
        ListTokens list_tokens;
        RevokeToken revoke_token;
        AddSshKey add_ssh_key;
        ListSshKeys list_ssh_keys;
        RemoveSshKey remove_ssh_key;
        PutUser put_user;
        SetUserRole set_user_role;
        ListUsers list_users;
        ListQueue list_queue;
        EditAccount edit_account;
        ListAccounts list_accounts;
        EditQos edit_qos;
        ListQos list_qos;
        EditPartition edit_partition;
        ListPartitions list_partitions;
        EditReservation edit_reservation;
        ListReservations list_reservations;
        ReadAudit read_audit;
    }
}

#[tokio::test]
async fn every_call_needs_what_the_table_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &[]).await;
    let roles = [
        ("ursula", Role::User, v1::Role::User),
        ("oscar", Role::Operator, v1::Role::Operator),
        ("adam", Role::Admin, v1::Role::Admin),
    ];
    let scopes = [
        (Scope::Read, v1::TokenScope::Read),
        (Scope::Sessions, v1::TokenScope::Sessions),
        (Scope::Full, v1::TokenScope::Full),
    ];
    for (number, (name, role, message)) in roles.into_iter().enumerate() {
        broker.put_user(name, 70_001 + number as u32, message).await;
        for (scope, message) in scopes {
            let mut client = broker.client_with(&broker.token(name, message).await).await;
            for call in Call::ALL {
                let needs = call.needs();
                // A token for less than everything is its user's, not their office's.
                let role = if scope == Scope::Full { role } else { Role::User };
                let may = role >= needs.role && scope >= needs.scope;
                let refused = make(&mut client, call).await;
                let denied = refused
                    .as_ref()
                    .filter(|status| status.code() == Code::PermissionDenied);
                assert_eq!(
                    denied.is_none(),
                    may,
                    "{call:?} as {role} with {scope}: {refused:?}"
                );
                let Some(status) = denied else { continue };
                let says = format!("{} {}", status.message(), hint(status));
                let named = if scope < needs.scope {
                    needs.scope.name()
                } else {
                    needs.role.name()
                };
                assert!(says.contains(named), "{call:?}: {says}");
            }
        }
    }
}

#[tokio::test]
async fn a_role_is_given_and_taken_by_administrators() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Daemon::start(&dir.path().join("s"), &["--admin", "adam"]).await;
    let mut alice = broker.user("alice", 70_001).await;
    // By the configuration, whatever the record says.
    let mut adam = broker.user("adam", 70_002).await;
    let role = |user: &str, role: v1::Role| v1::SetUserRoleRequest {
        user: user.into(),
        role: role.into(),
    };
    let refused = alice.set_user_role(role("alice", v1::Role::Admin)).await;
    assert_eq!(refused.expect_err("refused").code(), Code::PermissionDenied);
    let changed = adam
        .set_user_role(role("alice", v1::Role::Operator))
        .await
        .expect("changed");
    assert_eq!(changed.into_inner().role(), v1::Role::Operator);
    let users = alice
        .list_users(v1::ListUsersRequest {})
        .await
        .expect("listed")
        .into_inner()
        .users;
    assert!(
        users
            .iter()
            .any(|user| user.name == "adam" && user.role() == v1::Role::Admin),
        "{users:?}"
    );
    adam.set_user_role(role("alice", v1::Role::User))
        .await
        .expect("changed");
    let users = alice
        .list_users(v1::ListUsersRequest {})
        .await
        .expect("listed")
        .into_inner()
        .users;
    assert_eq!(users.len(), 1);
    // Over TLS nobody is root by name alone.
    let mut root = broker
        .client_with(&broker.token("root", v1::TokenScope::Full).await)
        .await;
    let refused = root.set_user_role(role("alice", v1::Role::Admin)).await;
    assert_eq!(refused.expect_err("refused").code(), Code::PermissionDenied);
}
