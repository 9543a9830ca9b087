//! `docs/evidence/reliability.md`: what was promised, what was found, what was not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::row::{Row, Words};
use crate::rows::ROWS;
use crate::run::{Found, State};
use crate::surroundings::Surroundings;

/// A fault that a test of its own looks at.
struct Elsewhere {
    fault: &'static str,
    promise: &'static str,
    /// Files from the root of the repository, and the tests in them.
    tests: &'static [(&'static str, &'static str)],
}

const ELSEWHERE: &[Elsewhere] = &[
    Elsewhere {
        fault: "power cut under the embedded log: what was not synced is gone",
        promise: "nothing committed is lost; with syncs that lie it is, and that is noticed",
        tests: &[
            ("crates/bus/tests/embedded_crash.rs", "a_power_cut_loses_nothing_that_was_committed_and_leaves_nothing_half"),
            ("crates/bus/tests/embedded_crash.rs", "a_disk_that_says_it_synced_and_did_not_loses_steps"),
        ],
    },
    Elsewhere {
        fault: "the embedded log's disk is full",
        promise: "it refuses with words below its reserve, lets go what has expired, and goes on when there is room; with no room at all it stops, and leaves nothing half there",
        tests: &[
            ("crates/bus/tests/embedded_crash.rs", "a_disk_below_its_reserve_refuses_and_goes_on_when_there_is_room"),
            ("crates/bus/tests/embedded_crash.rs", "below_its_reserve_a_log_still_lets_go_what_it_need_not_keep"),
            ("crates/bus/tests/embedded_crash.rs", "a_log_that_has_filled_its_file_system_lets_go_what_expired_and_goes_on"),
            ("crates/bus/tests/embedded_crash.rs", "a_file_system_without_any_room_stops_with_words_and_leaves_nothing_half"),
            ("crates/bus/tests/embedded_crash.rs", "a_full_disk_stops_with_words_and_leaves_nothing_half"),
        ],
    },
    Elsewhere {
        fault: "the archiver is killed, or its power cut, at each step on its disk: what was not synced is gone; the same in a compaction",
        promise: "each offset in exactly one file, whole at any time, and nothing is left behind; without syncs files are gone",
        tests: &[
            ("crates/lake/src/tests/crash.rs", "killed_or_powerless_at_any_step_each_offset_is_in_exactly_one_file"),
            ("crates/lake/src/tests/crash.rs", "a_compaction_killed_at_any_step_loses_and_doubles_nothing"),
            ("crates/lake/src/tests/crash.rs", "a_disk_that_never_syncs_loses_what_it_had"),
        ],
    },
    Elsewhere {
        fault: "the archiver is frozen behind what it has read, a date ends in that, and another one takes over",
        promise: "it writes nothing more, and ends",
        tests: &[("services/archiver/src/service.rs", "who_was_replaced_writes_no_file_of_what_it_had_read_before")],
    },
    Elsewhere {
        fault: "at every call of the log and every step on its disk, by seed, the archiver fails, is killed, loses its power or its partitions, or is frozen while another one takes over",
        promise: "what is visible is at any time the beginning of the log, each offset in one file, whole; without syncs, sweeping, the question who owns a partition, or with renames that tear, that is noticed",
        tests: &[
            ("services/archiver/tests/simulation.rs", "however_the_story_goes_each_offset_is_in_exactly_one_file"),
            ("services/archiver/tests/simulation.rs", "what_is_broken_on_purpose_is_found_out"),
        ],
    },
    Elsewhere {
        fault: "crashes at every call of the bus, in simulated time, by seed",
        promise: "windows, decisions and state as in a run without them",
        tests: &[(
            "services/processor/tests/simulation.rs",
            "however_the_story_goes_everything_is_said_once_and_the_state_is_the_same",
        )],
    },
    Elsewhere {
        fault: "records that are small only while they are compressed, and too large for the dead letters",
        promise: "no partition stalls; each is a dead letter with its beginning, its length and its hash",
        tests: &[("tests/kafka_processor.rs", "records_that_are_small_only_while_they_are_compressed_hold_no_partition_up")],
    },
    Elsewhere {
        fault: "a progress counter falls (restart from a checkpoint)",
        promise: "never invented progress",
        tests: &[("crates/core/tests/histories.rs", "a_fall_of_the_progress_counter_is_a_restart_and_never_speed")],
    },
    Elsewhere {
        fault: "an energy counter falls or disagrees; a GPU changes its workload",
        promise: "windows and what is unassigned are the whole",
        tests: &[
            ("services/collector/tests/nvml.rs", "counters_that_fall_are_told_and_those_that_disagree_left_out"),
            ("services/collector/tests/nvml.rs", "an_assignments_file_moves_a_gpu_between_workloads"),
            ("tests/recordings.rs", "windows_and_unassigned_of_a_simulated_log_are_the_whole"),
        ],
    },
    Elsewhere {
        fault: "a GPU hangs, is lost or has an error (Xid) that only a reset ends under the collector (a library built by the tests)",
        promise: "the others go on, nothing is invented",
        tests: &[
            ("services/collector/tests/nvml.rs", "one_hanging_gpu_stops_nobody_else_and_invents_nothing"),
            ("services/collector/tests/nvml.rs", "a_gpu_that_hangs_or_is_lost_at_start_joins_later"),
        ],
    },
    Elsewhere {
        fault: "the API server's other answers fail; it is killed, or its etcd; watches break off or have run out (410)",
        promise: "decisions are delayed and no more, nothing is missed",
        tests: &[
            ("tests/kubernetes_faults.rs", "a_change_that_is_refused_for_the_moment_or_whose_answer_is_lost_is_done_once"),
            ("tests/kubernetes_faults.rs", "requests_that_get_no_answer_hold_nothing_up_for_ever"),
            ("tests/kubernetes_faults.rs", "watches_that_break_off_or_have_run_out_miss_nothing"),
            (
                "tests/kubernetes_faults.rs",
                "an_api_server_that_is_killed_and_an_etcd_that_is_restarted_delay_decisions_and_no_more",
            ),
        ],
    },
    Elsewhere {
        fault: "the leading actuator leaves or is killed, another one stands by",
        promise: "it goes on with what was decided, each decision once",
        tests: &[
            (
                "tests/kubernetes_takeover.rs",
                "an_actuator_that_stands_by_goes_on_with_the_decisions_of_one_that_left_or_was_killed",
            ),
            ("tests/kubernetes_actuator.rs", "a_second_actuator_takes_over_and_the_first_ones_late_writes_do_no_harm"),
        ],
    },
    Elsewhere {
        fault: "SIGKILL of the node agent's own program, over a control program of MPS, too, that goes on without it",
        promise: "settings as before",
        tests: &[
            (
                "services/agent/tests/crash.rs",
                "killed_before_and_after_each_call_of_a_setting_the_next_start_puts_everything_back",
            ),
            ("services/agent/tests/crash.rs", "what_a_control_program_sets_after_its_agent_was_killed_is_put_back_too"),
        ],
    },
    Elsewhere {
        fault: "intents that are expired, of the future or unreadable; somebody else lifts a lock of clocks, which cannot be read",
        promise: "not followed, and what was asked before is put back; left alone and reported",
        tests: &[
            ("services/agent/tests/holds.rs", "without_a_live_intent_everything_is_put_back"),
            ("services/agent/tests/holds.rs", "what_somebody_else_changed_is_left_alone_and_reported"),
        ],
    },
    Elsewhere {
        fault: "decisions that are stale, expired or for another layout",
        promise: "they change nothing",
        tests: &[("tests/kubernetes_actuator.rs", "decisions_that_are_stale_expired_or_for_another_layout_change_nothing")],
    },
    Elsewhere {
        fault: "the actuator's clock is an hour ahead or behind",
        promise: "it applies nothing and says why; one with a right clock takes over",
        tests: &[(
            "tests/kubernetes_actuator.rs",
            "an_actuator_whose_clock_is_an_hour_off_changes_nothing_and_one_with_a_right_clock_takes_over",
        )],
    },
    Elsewhere {
        fault: "an hour of decisions that contradict each other, in simulated time",
        promise: "one change of a workload in `actuator.change_interval_seconds`, by what the object says",
        tests: &[("services/actuator/src/check.rs", "contradictory_decisions_change_a_workload_at_most_so_often")],
    },
    Elsewhere {
        fault: "an assignor other than `range`, or another property of Kafka that a promise rests on",
        promise: "refused before anything is read",
        tests: &[("tests/kafka_bus.rs", "settings_that_break_promises_are_refused")],
    },
    Elsewhere {
        fault: "clients without a right, or with another's",
        promise: "denied, with the right that is missing",
        tests: &[
            ("tests/kafka_security.rs", "only_who_is_known_by_password_or_certificate_gets_in"),
            ("tests/kafka_security.rs", "no_right_of_a_file_implies_another_one_and_lacking_any_is_noticed"),
            ("tests/kubernetes_roles.rs", "every_right_is_used_and_none_is_missing"),
        ],
    },
    Elsewhere {
        fault: "planted secrets, everything at its most verbose",
        promise: "never said",
        tests: &[("tests/kafka_secured.rs", "no_secret_is_ever_said")],
    },
    Elsewhere {
        fault: "slow, large and frequent senders of progress",
        promise: "cut off or refused",
        tests: &[("tests/ingest.rs", "slow_senders_are_cut_off_and_large_and_frequent_ones_refused")],
    },
    Elsewhere {
        fault: "a panic in a task",
        promise: "seen, and the others are drained",
        tests: &[("crates/service/src/supervise.rs", "a_panic_is_seen_and_drains_the_others")],
    },
];

/// What nothing looks at.
const MISSING: &[&str] = &[
    "a power cut under the only broker of a cluster, or under all of them at once: what Kafka acknowledged and had not synced is gone \
     then, as in `broker-power` without copies (operations.md, \"Copies\")",
    "the memory that a backlog of hostile records of a megabyte takes: 34 MB were seen beyond what an honest one does, since what is \
     read ahead fills while each large dead letter is a step of its own",
];

/// What was seen in rows that have no good run yet.
const UNSETTLED: &[(&str, &str)] = &[];

/// The page.
pub fn page(state: &State) -> String {
    let mut text = String::from(
        "# Reliability: what was promised, and what was found\n\n\
         <!-- Written by `cargo xtask chaos`; the figures are in reliability.json. -->\n\n\
         Every row is a fault on the real parts: Apache Kafka, a Kubernetes control plane where the row is about one, and EADT's services as\n\
         processes that are killed, stopped, cut off and starved. The node agent's GPUs are four of an NVML library that the tests build, which the agent speaks to\n\
         through the same binding as to NVIDIA's. What must come out is derived from a seed, by a model that shares no code with EADT and by EADT's own code to which\n\
         nothing happens, and compared with everything that was committed. Each row is also run with its mitigation switched off, and must then fail: a fault that does not bite\n\
         shows nothing. The services are builds with debug assertions, some optimised (`CARGO_PROFILE_DEV_OPT_LEVEL=2`; [which](#with-what)); a release build has no switches. Times are those of a loaded\n\
         machine with few cores, for orientation only.\n\n\
         ```\ncargo xtask chaos                      # everything at full length, which takes hours; then writes this page\n\
         cargo xtask chaos --resume             # goes on where that was interrupted; what another build began begins anew\n\
         cargo xtask chaos killed --rounds 50   # one row\n\
         cargo xtask chaos --list\n```\n\n\
         A short run of every row is part of `cargo xtask test`, and a test by itself (`cargo test -p eadt-chaos`). What `poison`\n\
         promises of memory only a longer run can tell.\n\n",
    );
    write(
        &mut text,
        format_args!(
            "Seed {}. Rounds that a full run would have stand in brackets where fewer were run. *Builds*: of how many the figures are\n\
             ([which](#with-what)). Promise, fault and what was switched off are those of the row when it was run; a row that says something else today has\n\
             a star, and [row by row](#row-by-row) what it says now, which these figures are not about.\n\n",
            state.seed
        ),
    );
    write(
        &mut text,
        format_args!("| row | promise | rounds | builds | compared | lost | doubled | wrong | without the mitigation |\n"),
    );
    write(&mut text, format_args!("|---|---|---:|---:|---:|---:|---:|---:|---|\n"));
    for row in ROWS {
        summary(&mut text, row, state.rows.get(row.name));
    }
    write(&mut text, format_args!("\n## Row by row\n"));
    for row in ROWS {
        if let Some(found) = state.rows.get(row.name) {
            details(&mut text, row, found);
        }
    }
    write(&mut text, format_args!("\n## With what\n\n"));
    let mut with: BTreeMap<&Surroundings, BTreeSet<&str>> = BTreeMap::new();
    for (name, found) in &state.rows {
        for surroundings in &found.surroundings {
            with.entry(surroundings).or_default().insert(name);
        }
    }
    for (Surroundings { eadt, kafka, kubernetes, librdkafka, fetch, java, linux, cores }, rows) in with {
        let kubernetes = if kubernetes.is_empty() { String::new() } else { format!(" Kubernetes {kubernetes},") };
        let fetch = if fetch.is_empty() { String::new() } else { format!(" records read by `bus.fetch = \"{fetch}\"`,") };
        let rows: Vec<String> = rows.into_iter().map(|row| format!("`{row}`")).collect();
        write(
            &mut text,
            format_args!(
                "- EADT {eadt}, Apache Kafka {kafka},{kubernetes} librdkafka {librdkafka},{fetch} {java}, Linux {linux}, {cores} cores: {}\n",
                rows.join(", ")
            ),
        );
    }
    write(&mut text, format_args!("\n## Faults that tests of their own look at\n\n| fault | promise | tests |\n|---|---|---|\n"));
    for Elsewhere { fault, promise, tests } in ELSEWHERE {
        let tests: Vec<String> = tests.iter().map(|(file, test)| format!("`{test}` in `{file}`")).collect();
        write(&mut text, format_args!("| {fault} | {promise} | {} |\n", tests.join("; ")));
    }
    write(&mut text, format_args!("\n## Not run\n\n"));
    for row in ROWS.iter().filter(|row| !state.rows.contains_key(row.name)) {
        write(&mut text, format_args!("- `{}`: {}\n", row.name, row.fault));
        for (_, seen) in UNSETTLED.iter().filter(|(name, _)| *name == row.name) {
            write(&mut text, format_args!("  - not settled: {seen}\n"));
        }
    }
    for fault in MISSING {
        write(&mut text, format_args!("- {fault}\n"));
    }
    text
}

fn write(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes what is written");
}

fn summary(text: &mut String, row: &Row, found: Option<&Found>) {
    let Row { name, full, .. } = row;
    let Some(found) = found else {
        write(text, format_args!("| `{name}` | {} | not run ({full}) | | | | | | |\n", row.promise));
        return;
    };
    let words = found.words(row);
    let (promise, star) = (&words.promise, if words == row.words() { "" } else { " \\*" });
    let (with, without) = (&found.with, &found.without);
    let rounds = if with.rounds < *full { format!("{} ({full})", with.rounds) } else { with.rounds.to_string() };
    let bites = match (without.violations(), without.rounds) {
        (_, 0) => "not run".to_owned(),
        (0, rounds) => format!("**no violation in {rounds} rounds**"),
        (violations, rounds) => format!("{violations} violations in {rounds} rounds"),
    };
    let (compared, lost, duplicated, wrong) = (with.compared, with.lost, with.duplicated, with.wrong);
    let builds = found.builds();
    write(
        text,
        format_args!(
            "| `{name}`{star} | {promise} | {rounds} | {builds} | {compared} | {lost} | {duplicated} | {wrong} | {bites} |\n"
        ),
    );
}

fn details(text: &mut String, row: &Row, found: &Found) {
    let (name, words) = (row.name, found.words(row));
    let Words { fault, promise, without } = &words;
    write(text, format_args!("\n**`{name}`**: {fault}. Switched off: {without}.\n\n"));
    let today = row.words();
    let changes =
        [("fault", fault, &today.fault), ("promise", promise, &today.promise), ("switched off", without, &today.without)];
    for (what, _, now) in changes.iter().filter(|(_, then, now)| then != now) {
        write(text, format_args!("- \\* {what}, as the row has it today: {now}\n"));
    }
    if found.words.is_none() {
        write(text, format_args!("- what the row said when it was run was not kept: this is what it says today\n"));
    }
    write(text, format_args!("- with the mitigation, {}\n", found.with.figure()));
    if found.without.rounds > 0 {
        write(text, format_args!("- without it, {}\n", found.without.figure()));
    }
    for example in found.without.examples.iter().take(1) {
        let example: String = example.lines().next().unwrap_or_default().chars().take(300).collect();
        write(text, format_args!("  - for example: {example}\n"));
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn every_test_that_is_named_exists() {
        for (file, test) in ELSEWHERE.iter().flat_map(|elsewhere| elsewhere.tests) {
            let text = std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(text.contains(&format!("fn {test}(")), "{file} has no test {test}");
        }
    }

    #[test]
    fn the_page_is_what_the_figures_say() {
        let state = State::read(&root().join("docs/evidence/reliability.json")).unwrap();
        let written = std::fs::read_to_string(root().join("docs/evidence/reliability.md")).unwrap();
        assert!(
            page(&state) == written,
            "docs/evidence/reliability.md is not what docs/evidence/reliability.json says: cargo xtask chaos --page"
        );
        assert!(state.rows.values().all(Found::is_good), "a row is broken or does not bite");
        assert!(state.rows.keys().all(|name| ROWS.iter().any(|row| row.name == *name)), "a row is no row any more");
    }

    #[test]
    fn a_row_that_says_something_else_today_is_marked_and_shown_with_what_it_said() {
        let row = ROWS.iter().find(|row| row.name == "killed").unwrap();
        let shown = |words: Option<Words>| {
            let found = Found { words, surroundings: [Surroundings::default()].into(), ..Found::default() };
            page(&State { seed: 1, rows: [("killed".to_owned(), found)].into() })
        };
        let same = shown(Some(row.words()));
        assert!(
            same.contains(&format!("| `killed` | {} | 0 (1000) | 1 |", row.promise)) && !same.contains("as the row has it today"),
            "{same}"
        );
        let former = Words { promise: "less".into(), ..row.words() };
        let other = shown(Some(former));
        assert!(other.contains("| `killed` \\* | less | 0 (1000) | 1 |"), "{other}");
        assert!(other.contains(&format!("- \\* promise, as the row has it today: {}\n", row.promise)), "{other}");
        assert!(!other.contains("switched off, as the row has it today"), "{other}");
        assert!(shown(None).contains("was not kept: this is what it says today"));
    }

    #[test]
    fn every_row_of_the_page_has_what_it_said_when_it_was_run() {
        let state = State::read(&root().join("docs/evidence/reliability.json")).unwrap();
        let without: Vec<_> = state.rows.iter().filter(|(_, found)| found.words.is_none()).map(|(name, _)| name).collect();
        assert!(
            without.is_empty(),
            "docs/evidence/reliability.json lacks \"words\" of {without:?}: take them from the row at its newest commit"
        );
    }

    #[test]
    fn what_was_not_run_is_said() {
        let text = page(&State::default());
        assert!(ROWS.iter().all(|row| text.contains(&format!("- `{}`: {}", row.name, row.fault))), "{text}");
    }
}
