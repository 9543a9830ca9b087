//! Simulated stories by seed: random numbers that a seed repeats, many stories in parallel, and the command that repeats a failed
//! one.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Chance from a seed. Its own few lines, because a seed that failed must fail again with every later release of a library.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03)
    }

    /// `SplitMix64`.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Stories of each simulation if nothing asks for more.
const USUAL: u64 = 250;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

/// The seeds of the stories to run.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    first: u64,
    /// Run at least this many stories, of consecutive seeds.
    least: u64,
    /// More, until then.
    until: Option<Instant>,
}

impl Seeds {
    /// Returns only this seed.
    pub fn one(seed: u64) -> Self {
        Self { first: seed, least: 1, until: None }
    }

    /// Reads the variables. `EADT_TEST_SEED`: only this seed. Otherwise 250 stories, or as many as `EADT_TEST_SEEDS` has, from
    /// `EADT_TEST_FIRST_SEED` (0) on, and then more for `EADT_TEST_STORY_SECONDS`.
    fn from_environment() -> Self {
        if let Some(seed) = number("EADT_TEST_SEED") {
            return Self::one(seed);
        }
        Self {
            first: number("EADT_TEST_FIRST_SEED").unwrap_or(0),
            least: number("EADT_TEST_SEEDS").unwrap_or(USUAL),
            until: number("EADT_TEST_STORY_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        }
    }

    fn has(&self, seed: u64) -> bool {
        seed < self.first.saturating_add(self.least) || self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// Runs one story per seed, as many in parallel as there are cores. Each returns the number of its crashes, or the failure at its
/// end. Variables select the seeds (`EADT_TEST_SEED`, `EADT_TEST_SEEDS`, `EADT_TEST_FIRST_SEED`, `EADT_TEST_STORY_SECONDS`).
/// `package` and `test` are the package and the module of the test.
pub fn run_stories(package: &str, test: &str, story: impl Fn(u64) -> Result<usize, String> + Sync) {
    let seeds = Seeds::from_environment();
    let (stories, crashes) = run_all_stories(seeds, story).unwrap_or_else(|(seed, wrong)| {
        panic!("seed {seed}: {wrong}\nrepeat it with: EADT_TEST_SEED={seed} cargo test -p {package} --test integration {test}::")
    });
    println!("{stories} stories with {crashes} crashes, from seed {}", seeds.first);
    assert!(stories == 1 || crashes as u64 > stories, "only {crashes} crashes: the simulation does not bite");
}

/// Returns the number of stories and of their crashes, or the lowest seed that fails, in any order of the threads, and its
/// failure.
pub fn run_all_stories(seeds: Seeds, story: impl Fn(u64) -> Result<usize, String> + Sync) -> Result<(u64, usize), (u64, String)> {
    let (next, first_wrong) = (AtomicU64::new(seeds.first), AtomicU64::new(u64::MAX));
    let thread = || {
        let (mut stories, mut crashes) = (0, 0);
        loop {
            // Seeds are taken in order: if one fails, all earlier seeds have been started, and run to their ends.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first_wrong.load(Ordering::Relaxed) || !seeds.has(seed) {
                return Ok((stories, crashes));
            }
            match catch_unwind(AssertUnwindSafe(|| story(seed))).unwrap_or_else(|_| Err("it panicked; see above".to_owned())) {
                Ok(crashed) => {
                    stories += 1;
                    crashes += crashed;
                }
                Err(wrong) => {
                    first_wrong.fetch_min(seed, Ordering::Relaxed);
                    return Err((seed, wrong));
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let ends: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        running.into_iter().map(|thread| thread.join().expect("what panics is caught")).collect()
    });
    match ends.iter().filter_map(|end| end.as_ref().err()).min() {
        Some(wrong) => Err(wrong.clone()),
        None => Ok(ends.into_iter().flatten().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))),
    }
}

/// Checks that with a mechanism broken on purpose more than `least` of this many stories fail, so that the simulation notices it.
/// It ends once that many failed.
pub fn is_found_out(broken: &str, stories: u64, least: usize, story: impl Fn(u64) -> Result<usize, String>) {
    let mut found = Vec::new();
    for seed in 0..stories {
        found.extend(story(seed).err().map(|wrong| (seed, wrong)));
        if found.len() > least {
            let (first, wrong) = &found[0];
            println!("{broken}: {} of {} stories go wrong; seed {first}: {wrong}", found.len(), seed + 1);
            return;
        }
    }
    panic!("{broken}: only {} of {stories} stories go wrong", found.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_the_seeds_that_go_wrong_is_reported() {
        let late = |seed| match seed {
            // The next one is there before it.
            7 => {
                std::thread::sleep(std::time::Duration::from_millis(20));
                panic!("on purpose");
            }
            8.. => Err("another one".to_owned()),
            _ => Ok(1),
        };
        let of = |first, least| Seeds { first, least, until: None };
        assert_eq!(run_all_stories(of(0, 100), late), Err((7, "it panicked; see above".to_owned())));
        assert_eq!(run_all_stories(of(0, 7), late), Ok((7, 7)));
        assert_eq!(run_all_stories(of(3, 4), late), Ok((4, 4)));
        assert_eq!(run_all_stories(Seeds::one(8), late), Err((8, "another one".to_owned())));
    }

    #[test]
    fn time_that_is_left_is_used_and_a_least_number_is_run_without_any() {
        let story = |seed: u64| if seed < 20 { Ok(1) } else { Err("there was time".to_owned()) };
        let until = |until| run_all_stories(Seeds { first: 5, least: 3, until: Some(until) }, story);
        assert_eq!(until(Instant::now()), Ok((3, 3)));
        assert_eq!(until(Instant::now() + Duration::from_mins(1)), Err((20, "there was time".to_owned())));
    }

    #[test]
    fn a_seed_repeats_its_chance() {
        let drawn = |seed| {
            let mut chance = Chance::new(seed);
            [(); 4].map(|()| chance.below(1_000))
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        // A seed that failed once is of use as long as this stays.
        assert_eq!(drawn(7), [791, 241, 415, 557]);
    }

    #[test]
    #[should_panic(expected = "no sync: only 1 of 3 stories go wrong")]
    fn what_no_story_notices_fails() {
        let story = |seed| if seed == 1 { Err("lost".to_owned()) } else { Ok(1) };
        is_found_out("no sync", 2, 0, story);
        is_found_out("no sync", 3, 1, story);
    }
}
