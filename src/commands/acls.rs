//! `eadt topics acls`: the rights that each part needs on Kafka, shown, written for Strimzi, or granted.

use crate::usage_error;
use anyhow::bail;

use crate::cli::AclsArgs;
use crate::output::print_line;
use crate::rights::{AclRole, strimzi_user};
use crate::settings::ProgramSettings;

pub fn run(args: &AclsArgs, settings: &ProgramSettings) -> anyhow::Result<()> {
    let parts = if args.parts.is_empty() { AclRole::ALL.to_vec() } else { args.parts.clone() };
    if let Some(principal) = &args.grant {
        if args.parts.is_empty() {
            let why = "needs the parts that it runs, for example";
            return Err(usage_error::impossible(format_args!(
                "--grant {principal} {why} `eadt topics acls processor --grant {principal}`"
            )));
        }
        if !principal.split_once(':').is_some_and(|(kind, name)| !kind.is_empty() && !name.is_empty()) {
            return Err(usage_error::invalid("--grant <PRINCIPAL>", principal, "Kafka's principals are written User:NAME"));
        }
        if settings.bus.brokers.is_empty() {
            bail!("rights are granted on a Kafka: give --kafka BROKERS or set KAFKA_BROKERS");
        }
        let mut rights: Vec<_> = parts.iter().flat_map(|part| part.rights(settings)).collect();
        rights.sort();
        rights.dedup();
        if !args.dry_run {
            crate::bus::kafka(settings)?.grant(principal, &rights)?;
        }
        for right in &rights {
            print_line!("{}{principal}: {right}", if args.dry_run { "would allow " } else { "allowed " });
        }
        return Ok(());
    }
    if let Some(cluster) = &args.strimzi {
        for (index, part) in parts.iter().enumerate() {
            let separator = if index == 0 { "" } else { "---\n" };
            crate::output::print(&format!("{separator}{}", strimzi_user(*part, cluster, &part.rights(settings))))?;
        }
    } else if args.json {
        let list: Vec<_> = parts
            .iter()
            .flat_map(|part| {
                part.rights(settings).into_iter().map(|right| {
                    serde_json::json!({
                        "part": part.name(), "operation": right.operation, "resource": right.resource.kind(),
                        "name": right.resource.name(), "pattern": right.pattern,
                    })
                })
            })
            .collect();
        print_line!("{}", serde_json::json!({ "rights": list }));
    } else {
        for part in &parts {
            for right in part.rights(settings) {
                print_line!("{}: {right}", part.name());
            }
        }
    }
    Ok(())
}
