//! `carrel token`: API tokens.

use std::time::Duration;

use carrel_core::model::user::Scope;
use carrel_proto::v1;
use clap::Subcommand;
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::terminal::say;
use crate::{output, units, view};

/// Administer API tokens.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    carrel token create --label laptop\n  \
    carrel token create --label ci --scope sessions --ttl 90d\n  \
    carrel token create --user bob --ttl 90d\n  \
    carrel token revoke 3f2a")]
pub struct TokenArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// What is done to tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token for `carrel login`; it is shown once
    Create {
        /// User that it speaks for; others' are for administrators [default: you]
        #[arg(long, value_name = "USER", default_value = "", hide_default_value = true)]
        user: String,
        /// What it is for
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        label: String,
        /// How long it is good for
        #[arg(long, value_name = "TIME", value_parser = units::parse_time, default_value = "30d")]
        ttl: Duration,
        /// What it is good for: read (looking), sessions (opening, entering, stopping them), or full
        ///
        /// Only a full one carries your role, makes tokens, keys and shares.
        #[arg(long, value_name = "SCOPE", default_value = "full")]
        scope: Scope,
    },
    /// List tokens, without their secrets
    List {
        /// Everybody's, for administrators
        #[arg(short, long)]
        all: bool,
    },
    /// End a token
    Revoke {
        /// Its id, as listed
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// What `token create --output json` prints.
#[derive(Debug, Serialize)]
struct Created {
    token: String,
    info: Option<view::Token>,
}

/// Runs the verb.
pub async fn run(context: &Context, args: TokenArgs) -> Result<u8> {
    let mut client = context.client().await?;
    match args.command {
        TokenCommand::Create {
            user,
            label,
            ttl,
            scope,
        } => {
            let request = v1::CreateTokenRequest {
                user,
                label,
                ttl_s: ttl.as_secs(),
                scope: v1::TokenScope::from(scope).into(),
            };
            let made = client.create_token(request).await?.into_inner();
            if context.json() {
                output::json(&Created {
                    token: made.token,
                    info: made.info.map(Into::into),
                })?;
                return Ok(0);
            }
            if let Some(info) = made.info {
                let expires = units::rfc3339(info.expires_ms);
                say(format_args!(
                    "carrel: token {} of {}, scope {}, good until {expires}; it is shown only now:",
                    info.id,
                    info.user,
                    view::token_scope(info.scope())
                ));
            }
            output::text(format_args!("{}\n", made.token))?;
        }
        TokenCommand::List { all } => {
            let tokens = client
                .list_tokens(v1::ListTokensRequest { all_users: all })
                .await?
                .into_inner()
                .tokens;
            if context.json() {
                output::json(&tokens.into_iter().map(view::Token::from).collect::<Vec<_>>())?;
                return Ok(0);
            }
            let header = ["ID", "USER", "SCOPE", "EXPIRES", "LAST USED", "LABEL"];
            output::text(output::table(header, tokens.into_iter().map(row)))?;
        }
        TokenCommand::Revoke { id } => {
            client
                .revoke_token(v1::RevokeTokenRequest { id: id.clone() })
                .await?;
            say(format_args!("carrel: token {id} is revoked"));
        }
    }
    Ok(0)
}

fn row(token: v1::TokenInfo) -> [String; 6] {
    let used = token.last_used_ms.map_or_else(
        || "never".to_owned(),
        |at| format!("{} from {}", units::rfc3339(at), token.last_used_from),
    );
    let scope = view::token_scope(token.scope()).to_owned();
    let expires = units::rfc3339(token.expires_ms);
    [token.id, token.user, scope, expires, used, token.label]
}
