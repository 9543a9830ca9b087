//! Contents of `--help`, `--version` and the manual pages beyond each option: groups of commands, an example of each,
//! exit statuses.

use std::ffi::OsString;
use std::fmt::Write;

use clap::builder::UnknownArgumentValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};

use crate::cli::Cli;

/// The version and the commit that the program was built from.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("SOURCE_COMMIT"), ")");

/// The commands by purpose, in the order of `eadt --help`.
pub const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["up", "collector", "processor", "actuator", "archiver", "exporter"]),
    ("Observe", &["dashboard", "top", "get", "describe", "tail", "report", "record", "import", "replay"]),
    ("Decide", &["profile", "tune", "partition", "policy", "training-config", "backtest"]),
    ("Learn", &["dataset", "optimizer"]),
    ("Operate", &["doctor", "topics", "token", "archive", "config", "metrics", "completions", "man"]),
];

/// An example of each command, by its words after `eadt`.
const EXAMPLES: &[(&str, &str)] = &[
    ("up", "eadt up --speed max --duration 6h --seed 7"),
    ("collector", "eadt collector --kafka kafka:9092"),
    ("processor", "eadt processor --kafka kafka:9092"),
    ("actuator", "eadt actuator --kafka kafka:9092 --kubernetes"),
    ("archiver", "eadt archiver --kafka kafka:9092 --data-dir /var/lib/eadt"),
    ("exporter", "eadt exporter --kafka kafka:9092"),
    ("optimizer", "eadt optimizer --dry-run --data-dir eadt-data"),
    ("archive", "eadt archive compact eadt-data/archive"),
    ("archive compact", "eadt archive compact eadt-data/archive --before 2026-01-31"),
    ("archive views", "eadt archive views eadt-data > views.sql"),
    ("dataset", "eadt dataset build eadt-data --out ds"),
    ("dataset build", "eadt dataset build eadt-data --out ds"),
    ("backtest", "eadt backtest --days 2 --seeds 2 --html backtest.html"),
    ("policy", "eadt policy explain llm-training --namespace team-a"),
    ("policy list", "eadt policy list --all-namespaces"),
    ("policy explain", "eadt policy explain llm-training --namespace team-a"),
    ("policy pause", "eadt policy pause llm-training --namespace team-a"),
    ("policy resume", "eadt policy resume --all --namespace team-a"),
    ("policy approve", "eadt policy approve llm-training --namespace team-a"),
    ("policy crd", "eadt policy crd | kubectl apply -f -"),
    ("profile", "eadt profile --knob sm_clock_mhz --simulate A100:compute --out points.csv"),
    ("tune", "eadt tune points.csv --by workload,gpu_model --max-slowdown 0.05 --html tune.html"),
    ("tune validate", "eadt tune validate result.json fresh.csv"),
    ("tune aggregate", "eadt tune aggregate series --format nvidia-smi --out points.csv"),
    ("tune export", "eadt tune export result.json --as energy-policy"),
    ("partition", "eadt partition simulate --out m"),
    ("partition evaluate", "eadt partition evaluate --paper-only"),
    ("partition choose", "eadt partition choose --solo m/solo.csv --workloads Gemm,ViT-inf"),
    ("partition train", "eadt partition train --solo m/solo.csv --co-runs m/co_runs.csv --out model.json"),
    ("partition simulate", "eadt partition simulate --out m"),
    ("topics", "eadt topics check --kafka kafka:9092"),
    ("topics apply", "eadt topics apply --dry-run --kafka kafka:9092"),
    ("topics check", "eadt topics check --kafka kafka:9092"),
    ("topics list", "eadt topics list --kafka kafka:9092"),
    ("topics desired", "eadt topics desired --strimzi my-kafka"),
    ("topics acls", "eadt topics acls processor --grant User:eadt-processor --kafka kafka:9092"),
    ("token", "eadt token create --namespace team-a --file tokens.json"),
    ("token create", "eadt token create --namespace team-a --expires 90d --file tokens.json"),
    ("token list", "eadt token list --file tokens.json"),
    ("token revoke", "eadt token revoke 0a1b2c3d --file tokens.json"),
    ("training-config", "eadt training-config training_config.yaml --gpus 3 --layers 24"),
    ("import", "eadt import nvidia-smi power.csv --workload lab/bert --out bert.jsonl.zst"),
    ("record", "eadt record --kafka kafka:9092 --out run.jsonl.zst"),
    ("replay", "eadt replay bert.jsonl.zst --out bert"),
    ("report", "eadt report eadt-data --by window"),
    ("top", "eadt top --kafka kafka:9092"),
    ("get", "eadt get workloads --from eadt-data -o wide"),
    ("describe", "eadt describe workload llm-training --from eadt-data"),
    ("tail", "eadt tail decisions --from-start --changes"),
    ("dashboard", "eadt dashboard --kafka kafka:9092"),
    ("doctor", "eadt doctor processor --kafka kafka:9092"),
    ("config", "eadt config show --config eadt.toml"),
    ("config reference", "eadt config reference > configuration.md"),
    ("config scenario", "eadt config scenario > scenario.toml"),
    ("config show", "eadt config show --config eadt.toml"),
    ("metrics", "eadt metrics > metrics.md"),
    ("completions", "eadt completions bash > eadt.bash"),
    ("man", "eadt man ."),
];

/// Options that all commands take, and the commands to which they mean something, by their words after `eadt`. The others do not
/// list them, and refuse them.
const MEANINGFUL: [(&[&str], &[&str]); 4] = [
    (
        &["kafka"],
        &[
            "up",
            "collector",
            "processor",
            "actuator",
            "archiver",
            "exporter",
            "optimizer",
            "topics apply",
            "topics check",
            "topics list",
            "topics acls",
            "dashboard",
            "tail",
            "top",
            "get",
            "describe",
            "record",
            "doctor",
            "config show",
        ],
    ),
    (
        &["data_dir"],
        &[
            "up",
            "archiver",
            "optimizer",
            "topics apply",
            "topics check",
            "topics list",
            "tail",
            "top",
            "get",
            "describe",
            "record",
            "doctor",
            "config show",
            "archive compact",
            "archive views",
        ],
    ),
    (
        &["config"],
        &[
            "up",
            "collector",
            "processor",
            "actuator",
            "archiver",
            "exporter",
            "optimizer",
            "topics apply",
            "topics check",
            "topics list",
            "topics desired",
            "topics acls",
            "dashboard",
            "tail",
            "top",
            "get",
            "describe",
            "record",
            "doctor",
            "config show",
            "archive compact",
            "archive views",
            "token create",
            "token list",
            "token revoke",
            "replay",
            "report",
            "backtest",
        ],
    ),
    (
        &["log", "log_json"],
        &[
            "up",
            "collector",
            "processor",
            "actuator",
            "archiver",
            "exporter",
            "optimizer",
            "topics apply",
            "topics check",
            "topics list",
            "topics acls",
            "dashboard",
            "tail",
            "top",
            "get",
            "describe",
            "record",
            "doctor",
            "config show",
            "archive compact",
            "import",
            "replay",
            "report",
            "backtest",
            "profile",
            "partition evaluate",
        ],
    ),
];

/// Options that users give to a command which has none of that name: command, option, and the right way there.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("report", "markdown", "--format markdown prints it"),
    ("report", "output", "--json, --csv and --format choose the form"),
    ("report", "from", "the record is named without an option: eadt report PATH"),
    (
        "report",
        "url",
        "a report reads a record: eadt report PATH; of a running eadt up, eadt get workloads and eadt describe read --url",
    ),
    ("get", "html", "a page of the figures is made by eadt report PATH --format html"),
    ("get", "json", "-o json prints JSON"),
    ("get", "csv", "-o csv prints CSV"),
    ("describe", "csv", "-o csv prints CSV"),
    ("describe", "since", "eadt get --since lists what is new; a description is of the whole record"),
    (
        "top",
        "from",
        "a record that has ended is read by eadt get, eadt describe and eadt report; a data folder is named by --data-dir",
    ),
    ("tail", "from", "a data folder is named by --data-dir; eadt get decisions --from reads an archive"),
    ("tail", "url", "eadt top --url and eadt get decisions --url read a running eadt up"),
    ("dashboard", "from", "the record is named without an option: eadt dashboard PATH"),
    ("dashboard", "url", "eadt up prints the address of its own page; eadt top --url reads it in a terminal"),
    ("dashboard", "html", "eadt report PATH --format html makes a file; the page of a workload has a link Export"),
    ("replay", "from", "the record is named without an option: eadt replay PATH"),
    ("replay", "html", "eadt report DIR --format html makes a page of what replay --out DIR wrote"),
];

/// Exit statuses and their meanings.
pub const EXIT_STATUSES: [(&str, &str); 5] = [
    ("0", "success, also if the reader of its output closed the pipe"),
    (
        "1",
        "it failed, or a check found something wrong (`doctor`, `topics check`, `replay --check`); the reason is on standard error",
    ),
    ("2", "invalid command line; nothing was done"),
    (
        "3",
        "completed, but events are missing: a collector lost some, the archive of `up` has none of its run, `replay`\n\
         refused some (stale ones, too; late ones apart) or could not read some, `replay --check` found decisions whose windows the\n\
         record lacks, or `import` wrote its log without rows that it refused",
    ),
    ("130", "a second signal ended it before it had drained"),
];

/// Returns the command line with all texts of the help.
pub fn command() -> Command {
    let mut command = Cli::command();
    let globals: Vec<Arg> = command.get_arguments().filter(|argument| argument.is_global_set()).cloned().collect();
    let groups = groups(&command);
    command =
        command.help_template("{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}");
    with_texts(command.before_help(groups).after_help(exit_statuses()), "", &globals)
}

/// Returns the example of a command, by its words after `eadt`.
pub fn example(path: &str) -> Option<&'static str> {
    EXAMPLES.iter().find(|(of, _)| *of == path).map(|(_, example)| *example)
}

fn exit_statuses() -> String {
    let mut text = String::from("Exit status:\n");
    for (status, meaning) in EXIT_STATUSES {
        writeln!(text, "  {status:<3}  {}", meaning.replace('\n', "\n       ")).expect("String");
    }
    text + "\n`eadt COMMAND --help` shows each command with an example."
}

/// Returns the command line as it is read: an option that another command has, or that is called otherwise here, is refused with the
/// one that is meant.
fn parser() -> Command {
    ELSEWHERE.iter().fold(command(), |command, (name, option, tip)| {
        let refused = Arg::new(*option)
            .long(*option)
            .action(ArgAction::SetTrue)
            .value_parser(UnknownArgumentValueParser::suggest(*tip))
            .hide(true);
        command.mut_subcommand(name, |sub| sub.arg(refused))
    })
}

/// Reads a command line, its first word being the program's name. Refuses an option of all commands that means nothing to the
/// command that is given; what a variable of the environment sets is not refused, since that one is for all commands.
pub fn parse(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let mut parser = parser();
    let matches = parser.try_get_matches_from_mut(arguments)?;
    let mut names: Vec<&str> = Vec::new();
    let mut below = matches.subcommand();
    while let Some((name, inner)) = below {
        names.push(name);
        below = inner.subcommand();
    }
    let Some(refusal) = meaningless_option(&matches, &names.join(" ")) else { return Cli::from_arg_matches(&matches) };
    let mut command = &mut parser;
    for name in names {
        command = command.find_subcommand_mut(name).expect("a command that was parsed");
    }
    Err(command.error(ErrorKind::ArgumentConflict, refusal))
}

/// Returns the refusal of the first option on the command line that means nothing to this command: it names the commands to which
/// the option belongs.
fn meaningless_option(matches: &ArgMatches, path: &str) -> Option<String> {
    let mut options = MEANINGFUL.iter().flat_map(|(options, commands)| options.iter().map(move |option| (*option, *commands)));
    let (option, commands) = options
        .find(|(option, _)| matches.value_source(option) == Some(ValueSource::CommandLine) && !is_meaningful(option, path))?;
    let name = option.replace('_', "-");
    Some(format!("--{name} means nothing to `eadt {path}`: leave it out; it belongs to {}", commands.join(", ")))
}

/// Returns whether an option means something to a command, or to one below it.
fn is_meaningful(option: &str, path: &str) -> bool {
    let is_at_or_below = |command: &&str| command.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    MEANINGFUL.iter().all(|(options, commands)| !options.contains(&option) || commands.iter().any(is_at_or_below))
}

/// Returns the list of commands, by group.
fn groups(command: &Command) -> String {
    let mut text = String::new();
    let wide = command.get_subcommands().map(|sub| sub.get_name().len()).max().unwrap_or_default();
    for (title, names) in GROUPS {
        writeln!(text, "{title}:").expect("String");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string).unwrap_or_default();
            writeln!(text, "  {name:wide$}  {about}").expect("String");
        }
        text.push('\n');
    }
    // The part before the options ends in an empty line.
    text.trim_end().to_owned()
}

/// Names of values that are numbers or lengths of time.
const NUMBERS: [&str; 12] =
    ["FACTOR", "TIME", "SECONDS", "DAYS", "WATTS", "COUNT", "ROWS", "RATIO", "PERCENT", "PRICE", "GRAMS", "MHZ,…"];

/// Gives each command its example, and the options of all commands at the end, hidden if they mean nothing. Lets every number
/// take what begins with a minus, so that the option reports what is possible instead of an option of that name being looked
/// for.
fn with_texts(command: Command, path: &str, globals: &[Arg]) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let own = globals.iter().filter(|_| !path.is_empty()).map(|argument| {
        let is_hidden = !is_meaningful(argument.get_id().as_str(), path);
        argument.clone().help_heading("Global options").hide(is_hidden)
    });
    let mut command = command.args(own).mut_args(|argument| {
        if !argument.get_action().takes_values() || argument.is_positional() {
            return argument;
        }
        let names = argument.get_value_names().unwrap_or_default();
        let is_number = names.iter().any(|name| NUMBERS.contains(&name.as_str()));
        if is_number { argument.allow_hyphen_values(true) } else { argument.allow_negative_numbers(true) }
    });
    if let Some(example) = example(path) {
        command = command.after_help(format!("Example:\n  {example}"));
    }
    for name in names {
        let path = if path.is_empty() { name.clone() } else { format!("{path} {name}") };
        command = command.mut_subcommand(&name, |sub| with_texts(sub, &path, globals));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each command below this one, by its words after `eadt`.
    fn all_commands<'a>(command: &'a Command, path: &str, into: &mut Vec<(String, &'a Command)>) {
        for sub in command.get_subcommands() {
            let path = if path.is_empty() { sub.get_name().to_owned() } else { format!("{path} {}", sub.get_name()) };
            all_commands(sub, &path, into);
            into.push((path, sub));
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        command().debug_assert();
        parser().debug_assert();
    }

    #[test]
    fn an_option_of_another_command_is_refused_with_the_one_that_is_meant() {
        for (arguments, tip) in [
            (&["report", "d", "--markdown"][..], "--format markdown"),
            (&["report", "--url", "http://127.0.0.1:1"], "eadt report PATH"),
            (&["get", "decisions", "--json"], "-o json"),
            (&["describe", "workload", "w", "--since", "5m"], "eadt get --since"),
            (&["describe", "workload", "w", "--csv"], "-o csv"),
            (&["top", "--from", "d"], "--data-dir"),
            (&["dashboard", "--from", "d"], "eadt dashboard PATH"),
        ] {
            let words: Vec<&str> = ["eadt"].into_iter().chain(arguments.iter().copied()).collect();
            let error = parse(words).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{arguments:?}");
            let text = error.to_string();
            assert!(text.contains("unexpected argument '--") && text.contains(tip), "{arguments:?}: {text}");
        }
        let help = parser().find_subcommand_mut("report").unwrap().render_long_help().to_string();
        assert!(!help.contains("--markdown"), "{help}");
    }

    /// Backticks mark typed text, such as kinds of Kubernetes objects. Terms of the field have none: clippy.toml lists those
    /// that clippy takes for code.
    #[test]
    fn no_name_of_the_field_is_shown_as_code() {
        const CODE: [&str; 3] = ["EnergyPolicy", "KafkaTopic", "KafkaUser"];
        fn names(command: &mut Command, into: &mut Vec<String>) {
            let texts = [command.render_long_help().to_string(), command.render_help().to_string()];
            let quoted = texts.iter().flat_map(|text| text.split('`').skip(1).step_by(2));
            let is_name = |text: &&str| {
                text.chars().all(char::is_alphabetic)
                    && text.chars().skip(1).any(char::is_uppercase)
                    && text.chars().any(char::is_lowercase)
            };
            into.extend(quoted.filter(is_name).map(str::to_owned));
            command.get_subcommands_mut().for_each(|sub| names(sub, into));
        }
        let mut found = Vec::new();
        let mut root = command();
        root.build();
        names(&mut root, &mut found);
        found.retain(|name| !CODE.contains(&name.as_str()));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn each_command_is_in_one_group_and_has_an_example_that_can_be_typed() {
        let command = command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let mut names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        grouped.sort_unstable();
        names.sort_unstable();
        assert_eq!(grouped, names);
        let mut all = Vec::new();
        all_commands(&command, "", &mut all);
        let mut paths: Vec<&str> = all.iter().map(|(path, _)| &**path).collect();
        let mut of: Vec<&str> = EXAMPLES.iter().map(|(path, _)| *path).collect();
        of.sort_unstable();
        paths.sort_unstable();
        assert_eq!(of, paths);
        for (path, example) in EXAMPLES {
            assert!(example.starts_with(&format!("eadt {path}")), "{example}");
            let words: Vec<&str> = example.split(' ').take_while(|word| !["|", ">"].contains(word)).collect();
            if let Err(error) = parse(words) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn help_shows_groups_statuses_examples_and_the_options_that_mean_something() {
        let mut root = command();
        root.build();
        let text = root.render_long_help().to_string();
        for part in ["Run:", "Observe:", "Decide:", "Learn:", "Operate:", "Exit status:", "  130  ", "--kafka"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let help = |path: &[&str]| {
            let mut of = &mut root.clone();
            for name in path {
                of = of.find_subcommand_mut(name).unwrap();
            }
            of.render_long_help().to_string()
        };
        let apply = help(&["topics", "apply"]);
        assert!(apply.contains("Example:\n  eadt topics apply") && apply.contains("--kafka"), "{apply}");
        let tune = help(&["tune"]);
        assert!(tune.contains("Example:\n  eadt tune") && !tune.contains("--kafka") && !tune.contains("--log"), "{tune}");
        let of_all = |path: &[&str]| help(path).split_once("Global options:").map(|(_, options)| options.to_owned());
        for (path, shown, hidden) in [
            (&["processor"][..], &["--kafka", "--config", "--log"][..], &["--data-dir"][..]),
            (&["archive", "compact"], &["--data-dir", "--config"], &["--kafka"]),
            (&["topics", "apply"], &["--kafka", "--data-dir"], &[]),
            (&["topics", "desired"], &["--config"], &["--kafka", "--data-dir", "--log"]),
            (&["token", "list"], &["--config"], &["--kafka", "--data-dir"]),
            (&["config"], &["--kafka", "--data-dir", "--log"], &[]),
            (&["config", "show"], &["--kafka", "--data-dir", "--log"], &[]),
        ] {
            let options = of_all(path).unwrap();
            assert!(shown.iter().all(|option| options.contains(option)), "{path:?}: {options}");
            assert!(!hidden.iter().any(|option| help(path).contains(option)), "{path:?}: {}", help(path));
        }
        for path in [&["tune"][..], &["config", "reference"], &["dataset", "build"], &["policy", "list"]] {
            assert_eq!(of_all(path), None, "{path:?}");
        }
        // They are taken before and after the command.
        for arguments in [
            &["eadt", "--kafka", "k:1", "topics", "apply"][..],
            &["eadt", "topics", "--kafka", "k:1", "apply"],
            &["eadt", "topics", "apply", "--kafka", "k:1", "--log-json"],
        ] {
            let cli = parse(arguments).unwrap();
            assert_eq!(cli.kafka.as_deref(), Some("k:1"), "{arguments:?}");
        }
    }

    #[test]
    fn an_option_that_means_nothing_to_a_command_is_refused_with_the_commands_that_it_belongs_to() {
        for (arguments, option, belongs_to) in [
            (&["metrics", "--kafka", "x:9"][..], "--kafka", "up, collector"),
            (&["--kafka", "x:9", "metrics"], "--kafka", "up, collector"),
            (&["config", "reference", "--kafka", "x:9"], "--kafka", "config show"),
            (&["policy", "crd", "--data-dir", "/x"], "--data-dir", "archive compact"),
            (&["man", ".", "--kafka", "x:9"], "--kafka", "topics apply"),
            (&["completions", "bash", "--config", "/none.toml"], "--config", "token create"),
            (&["backtest", "--kafka", "x:9"], "--kafka", "doctor"),
            (&["report", "d", "--data-dir", "d"], "--data-dir", "tail"),
            (&["topics", "desired", "--log-json"], "--log-json", "profile"),
            (&["tune", "p.csv", "--max-slowdown", "0.1", "--log", "debug"], "--log", "replay"),
        ] {
            let words: Vec<&str> = ["eadt"].iter().chain(arguments).copied().collect();
            let error = parse(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{arguments:?}");
            let text = error.to_string();
            let (_, commands) = text.split_once("it belongs to ").unwrap_or_else(|| panic!("{arguments:?}: {text}"));
            assert!(text.contains(&format!("{option} means nothing to `eadt ")) && commands.contains(belongs_to), "{text}");
        }
        assert!(parse(["eadt", "doctor", "--log-json", "--data-dir", "d"]).unwrap().log_json);
    }

    #[test]
    fn every_option_of_every_command_has_a_text() {
        let command = command();
        let mut all = Vec::new();
        all_commands(&command, "", &mut all);
        let mut bare = Vec::new();
        for (path, command) in &all {
            let own =
                command.get_arguments().filter(|argument| argument.get_help().is_none() && argument.get_long_help().is_none());
            bare.extend(own.map(|argument| format!("{path} {}", argument.get_id().as_str())));
        }
        assert!(bare.is_empty(), "{bare:?}");
        for (options, commands) in MEANINGFUL {
            let is_command = |name: &&str| all.iter().any(|(path, _)| path == name);
            assert!(commands.iter().all(is_command), "{options:?}: {commands:?}");
        }
    }

    #[test]
    fn the_version_names_a_commit() {
        let (version, commit) = VERSION.split_once(' ').unwrap();
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let commit = commit.trim_matches(['(', ')']);
        assert!(commit == "unknown" || commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit}");
    }

    #[test]
    fn a_number_that_is_not_possible_is_refused_with_what_is() {
        for (arguments, possible) in [
            (&["up", "--speed", "-1"][..], "or max"),
            (&["up", "--speed", "0"], "or max"),
            (&["up", "--speed", "nan"], "or max"),
            (&["up", "--speed", "inf"], "or max"),
            (&["up", "--speed", "-inf"], "or max"),
            (&["up", "--seed", "-1"], "a whole number from 0"),
            (&["backtest", "--days", "-1"], "a number above 0"),
            (&["backtest", "--days", "inf"], "a number above 0"),
            (&["backtest", "--seeds", "0"], "a whole number from 1"),
            (&["backtest", "--seeds", "-3"], "a whole number from 1"),
            (&["backtest", "--power-budget", "nan"], "a number above 0"),
            (&["profile", "--knob", "sm_clock_mhz", "--out", "p", "--seed", "-1"], "a whole number from 0"),
            (&["partition", "choose", "--solo", "s", "--workloads", "a,b", "--floor", "1.5"], "a number from 0 to 1"),
            (&["partition", "choose", "--solo", "s", "--workloads", "a,b", "--step", "0"], "a whole number from 1 to 100"),
        ] {
            let words: Vec<&str> = ["eadt"].iter().chain(arguments).copied().collect();
            let error = parse(words).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(possible), "{arguments:?}: {error}");
        }
    }
}
