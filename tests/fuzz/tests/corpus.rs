//! Inputs that once reached something new, or were once too much; and inputs near them, which need no instrumented build.

use std::path::Path;

use eadt_fuzz::Target;
use eadt_testing::cases;
use proptest::prelude::*;

/// All targets by their names.
fn targets() -> impl Iterator<Item = (&'static str, Target)> {
    eadt_fuzz::TARGETS.into_iter().chain([("settings", eadt_fuzz_program::settings as Target)])
}

/// The kept inputs of a target, with their names.
fn kept(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<_> = files
        .map(|file| {
            let path = file.unwrap().path();
            (path.display().to_string(), std::fs::read(&path).unwrap())
        })
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn every_kept_input_is_survived() {
    for (name, target) in targets() {
        let inputs = kept(name);
        assert!(!inputs.is_empty(), "{name} has no kept inputs");
        for (path, input) in inputs {
            println!("{path}");
            target(&input);
        }
    }
}

/// A change of an input; places are parts of its length, so that they fit any.
#[derive(Debug, Clone)]
enum Change {
    Set(f64, u8),
    Cut(f64, usize),
    Repeat(f64, usize),
    Insert(f64, &'static str),
    /// A part of another kept input of the target in its place.
    Splice(f64, usize, f64, usize),
}

/// Texts that readers often fail on.
const ODD: [&str; 16] = [
    "0",
    "-1",
    "1e308",
    "-1e-308",
    "1e400",
    "NaN",
    "18446744073709551616",
    "9223372036854775807",
    "null",
    "{}",
    "[]",
    "\"",
    "\n",
    "\0",
    "\u{fffd}",
    "9999-12-31T23:59:59.999999Z",
];

fn change() -> impl Strategy<Value = Change> {
    let place = 0.0..1.0_f64;
    prop_oneof![
        3 => (place.clone(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => (place.clone(), 1..40_usize).prop_map(|(at, count)| Change::Cut(at, count)),
        1 => (place.clone(), 1..200_usize).prop_map(|(at, count)| Change::Repeat(at, count)),
        3 => (place.clone(), prop::sample::select(&ODD[..])).prop_map(|(at, text)| Change::Insert(at, text)),
        2 => (place.clone(), any::<usize>(), place, 1..100_usize)
            .prop_map(|(at, other, from, count)| Change::Splice(at, other, from, count)),
    ]
}

fn changed(inputs: &[(String, Vec<u8>)], input: usize, changes: &[Change]) -> Vec<u8> {
    let mut bytes = inputs[input % inputs.len()].1.clone();
    for change in changes {
        let at = |place: f64, bytes: &[u8]| (place * bytes.len() as f64) as usize;
        match change {
            Change::Set(place, byte) => {
                let at = at(*place, &bytes);
                bytes.splice(at..(at + 1).min(bytes.len()), [*byte]);
            }
            Change::Cut(place, count) => {
                let at = at(*place, &bytes);
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Change::Repeat(place, count) => {
                let at = at(*place, &bytes);
                let part = bytes[at..(at + count).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            Change::Insert(place, text) => {
                let at = at(*place, &bytes);
                // Instead of a number, if one is there.
                let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(at..at + digits, text.bytes());
            }
            Change::Splice(place, other, from, count) => {
                let other = &inputs[other % inputs.len()].1;
                let (at, from) = (at(*place, &bytes), at(*from, other));
                let part = other[from..(from + count).min(other.len())].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(300) })]

    #[test]
    fn what_is_near_to_kept_inputs_is_survived(input in any::<usize>(), changes in prop::collection::vec(change(), 1..6)) {
        thread_local! {
            static KEPT: Vec<Vec<(String, Vec<u8>)>> = targets().map(|(name, _)| kept(name)).collect();
        }
        KEPT.with(|all| {
            for ((_, target), inputs) in targets().zip(all) {
                target(&changed(inputs, input, &changes));
            }
        });
    }
}
