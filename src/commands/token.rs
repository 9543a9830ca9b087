//! `eadt token`: manages the right to report progress, and its namespaces.

use std::path::PathBuf;

use anyhow::Context;
use eadt_collector::progress::tokens::{self, CHANCE_BYTES};
use eadt_service::ServiceClock;
use serde_json::json;

use crate::cli::TokenCommand;
use crate::output::print_line;
use crate::settings::ProgramSettings;

pub fn run(command: &TokenCommand, settings: &ProgramSettings) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create { namespace, expires, file, json } => {
            let path = place(file.as_ref(), settings)?;
            let now = ServiceClock::machine().now();
            let expires = expires.map(|lasts| now.plus_seconds(lasts.as_secs_f64()));
            let mut chance = [0; CHANCE_BYTES];
            getrandom::fill(&mut chance).map_err(|error| anyhow::anyhow!("the system gives no randomness: {error}"))?;
            let (token, id) = tokens::change(&path, |tokens| {
                let (token, entry) = tokens.create(&chance, namespace, now, expires)?;
                Ok((token, entry.id.clone()))
            })?;
            if *json {
                print_line!("{}", json!({"id": id, "token": token.reveal(), "namespaces": namespace, "expires": expires}));
            } else {
                print_line!("{}", token.reveal());
                let until = expires.map_or_else(|| "until it is revoked".to_owned(), |time| format!("until {time}"));
                crate::output::note!(
                    "token {id} may report for {} {until}; this is the only time that it is shown, {} keeps its hash",
                    namespace.join(", "),
                    path.display()
                );
            }
        }
        TokenCommand::List { file, json } => {
            let tokens = tokens::read(&place(file.as_ref(), settings)?)?.tokens;
            let now = ServiceClock::machine().now();
            if *json {
                let list: Vec<_> = tokens
                    .iter()
                    .map(|entry| json!({"id": entry.id, "namespaces": entry.namespaces, "created": entry.created, "expires": entry.expires}))
                    .collect();
                print_line!("{}", json!({ "tokens": list }));
                return Ok(());
            }
            for entry in &tokens {
                let until = match entry.expires {
                    Some(expires) if expires <= now => format!("expired {expires}"),
                    Some(expires) => format!("until {expires}"),
                    None => "until it is revoked".to_owned(),
                };
                print_line!("{}  {}  created {}  {until}", entry.id, entry.namespaces.join(","), entry.created);
            }
            if tokens.is_empty() {
                print_line!("no tokens: no sender can report; eadt token create makes one");
            }
        }
        TokenCommand::Revoke { id, file } => {
            let path = place(file.as_ref(), settings)?;
            tokens::change(&path, |tokens| tokens.revoke(id))?;
            crate::output::note!(
                "token {id} is worth nothing any more; collectors that read {} know within a second",
                path.display()
            );
        }
    }
    Ok(())
}

fn place(file: Option<&PathBuf>, settings: &ProgramSettings) -> anyhow::Result<PathBuf> {
    let place = file.or(settings.collector.progress.tokens_file.as_ref()).cloned();
    place.context("no tokens file: name one with --file, or with the setting collector.progress.tokens_file")
}
