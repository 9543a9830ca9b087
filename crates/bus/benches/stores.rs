//! The two candidate stores under the embedded log's own access pattern; the figures are in `docs/adr/0002-embedded-store.md`.
//!
//! `cargo bench -p eadt-bus --features store-bench --bench stores [-- DIR]`: DIR is on the disk to be measured.
//! One row is one appended batch of a partition, as in the embedded log. Each store has processes of its own, so that the
//! peak memory is its own; the first is killed, the second opens what it left.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

type Error = Box<dyn std::error::Error>;
type Key = [u8; 16];

const RECORD: usize = 400;
const PER_BATCH: usize = 1000;
const BATCHES: u64 = 500;
const SMALL: u64 = 500;
const PARTITIONS: u64 = 4;

#[derive(Clone, Copy)]
enum Durable {
    /// Survives the death of the process.
    Process,
    /// Survives a power cut.
    Power,
}

trait Store: Sized {
    const NAME: &'static str;
    /// Whether a commit without fsync survives kill -9.
    const CHEAP_DURABILITY: bool;
    fn open(dir: &Path) -> Result<Self, Error>;
    fn commit(&self, rows: &[(Key, &[u8])], durable: Durable) -> Result<(), Error>;
    fn scan(&self, each: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error>;
    /// Removes the rows of a partition below this base offset.
    fn trim(&self, partition: u64, below: u64) -> Result<(), Error>;
}

fn key(partition: u64, offset: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&partition.to_be_bytes());
    key[8..].copy_from_slice(&offset.to_be_bytes());
    key
}

struct Redb(redb::Database);

const ROWS: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("rows");

impl Store for Redb {
    const NAME: &'static str = "redb";
    const CHEAP_DURABILITY: bool = false;

    fn open(dir: &Path) -> Result<Self, Error> {
        let db = redb::Database::builder().set_cache_size(32 << 20).create(dir.join("log.redb"))?;
        let begun = db.begin_write()?;
        begun.open_table(ROWS)?;
        begun.commit()?;
        Ok(Self(db))
    }

    fn commit(&self, rows: &[(Key, &[u8])], durable: Durable) -> Result<(), Error> {
        let mut step = self.0.begin_write()?;
        step.set_durability(match durable {
            Durable::Process => redb::Durability::None,
            Durable::Power => redb::Durability::Immediate,
        })?;
        {
            let mut table = step.open_table(ROWS)?;
            for (key, value) in rows {
                table.insert(&key[..], *value)?;
            }
        }
        Ok(step.commit()?)
    }

    fn scan(&self, mut each: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        use redb::{ReadableDatabase, ReadableTable};
        for row in self.0.begin_read()?.open_table(ROWS)?.iter()? {
            if each(row?.1.value()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn trim(&self, partition: u64, below: u64) -> Result<(), Error> {
        let step = self.0.begin_write()?;
        step.open_table(ROWS)?.retain_in(&key(partition, 0)[..]..&key(partition, below)[..], |_, _| false)?;
        Ok(step.commit()?)
    }
}

struct Fjall {
    db: fjall::Database,
    rows: fjall::Keyspace,
}

impl Store for Fjall {
    const NAME: &'static str = "fjall";
    const CHEAP_DURABILITY: bool = true;

    fn open(dir: &Path) -> Result<Self, Error> {
        let db = fjall::Database::builder(dir)
            .cache_size(32 << 20)
            .max_journaling_size(64 << 20)
            .worker_threads(1)
            .max_cached_files(Some(64))
            .open()?;
        let rows = db.keyspace("rows", || {
            fjall::KeyspaceCreateOptions::default()
                .max_memtable_size(8 << 20)
                .with_kv_separation(Some(fjall::KvSeparationOptions::default()))
        })?;
        Ok(Self { db, rows })
    }

    fn commit(&self, rows: &[(Key, &[u8])], durable: Durable) -> Result<(), Error> {
        let mut step = self.db.batch().durability(Some(match durable {
            Durable::Process => fjall::PersistMode::Buffer,
            Durable::Power => fjall::PersistMode::SyncData,
        }));
        for (key, value) in rows {
            step.insert(&self.rows, &key[..], *value);
        }
        Ok(step.commit()?)
    }

    fn scan(&self, mut each: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        for row in self.rows.iter() {
            if each(&row.into_inner()?.1).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn trim(&self, partition: u64, below: u64) -> Result<(), Error> {
        let mut step = self.db.batch();
        for row in self.rows.range(key(partition, 0)..key(partition, below)) {
            step.remove(&self.rows, row.key()?);
        }
        step.commit()?;
        self.rows.rotate_memtable_and_wait()?;
        Ok(self.rows.major_compact()?)
    }
}

/// Clock ticks of user and system time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map_or_else(String::new, |kb| kb.trim().to_owned())
}

fn folder_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::read_dir(dir).map_or(0, |entries| {
        entries
            .flatten()
            .map(|entry| match entry.metadata() {
                Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
                Ok(meta) => meta.blocks() * 512,
                Err(_) => 0,
            })
            .sum()
    })
}

fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e3;
    format!("p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", at(0.5), at(0.99), at(1.0))
}

fn measure_until_kill<S: Store>(dir: &Path) -> Result<(), Error> {
    let report = |what: &str, figures: String| println!("{:6} {what:28} {figures}", S::NAME);
    let store = S::open(dir)?;
    // Does not compress to nothing, as real records do not.
    let mut seed = 1_u64;
    let block: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    })
    .take(RECORD * PER_BATCH)
    .collect();
    let megabytes = BATCHES as f64 * block.len() as f64 / 1e6;

    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let mut times = Vec::new();
    for n in 0..BATCHES {
        let one = Instant::now();
        store.commit(&[(key(n % PARTITIONS, n / PARTITIONS), &block)], Durable::Power)?;
        times.push(one.elapsed());
    }
    let wall = begun.elapsed().as_secs_f64();
    report(
        "batches of 1000, fsync",
        format!(
            "{}; {:.0} MB/s, {:.2} µs CPU/record",
            quantiles(times),
            megabytes / wall,
            (cpu_seconds() - cpu) * 1e6 / (BATCHES * PER_BATCH as u64) as f64
        ),
    );

    // A step of a service: two outputs, one state, five positions, in different places.
    let mut times = Vec::new();
    for n in 0..SMALL {
        let one = Instant::now();
        let rows: Vec<(Key, &[u8])> = (0..8)
            .map(|r| (key(100 + r, if r < 3 { n } else { 0 }), if r < 3 { &block[..RECORD] } else { &block[..8] }))
            .collect();
        store.commit(&rows, Durable::Power)?;
        times.push(one.elapsed());
    }
    report("step of 8 small rows, fsync", quantiles(times));
    if S::CHEAP_DURABILITY {
        let mut times = Vec::new();
        for n in 0..SMALL {
            let one = Instant::now();
            store.commit(&[(key(200, n), &block[..10 * RECORD])], Durable::Process)?;
            times.push(one.elapsed());
        }
        report("batch of 10, kill -9 safe", quantiles(times));
    } else {
        report("batch of 10, kill -9 safe", "only by fsync".to_owned());
    }
    report("on disk after writing", format!("{:.2} x the payload", folder_bytes(dir) as f64 / 1e6 / megabytes));

    // Ends like kill -9.
    std::process::abort();
}

fn measure_after_kill<S: Store>(dir: &Path) -> Result<(), Error> {
    let report = |what: &str, figures: String| println!("{:6} {what:28} {figures}", S::NAME);
    let megabytes = BATCHES as f64 * (RECORD * PER_BATCH) as f64 / 1e6;
    let begun = Instant::now();
    let store = S::open(dir)?;
    report("open after a kill", format!("{:.0} ms", begun.elapsed().as_secs_f64() * 1e3));

    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let (mut bytes, mut sum) = (0_u64, 0_u64);
    store.scan(|value| {
        bytes += value.len() as u64;
        sum += value.iter().step_by(64).map(|b| u64::from(*b)).sum::<u64>();
        ControlFlow::Continue(())
    })?;
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let records = bytes as f64 / RECORD as f64;
    report(
        "sequential read",
        format!("{:.0} MB/s, {:.3} µs CPU/record (sum {sum})", bytes as f64 / 1e6 / wall, cpu * 1e6 / records),
    );

    let begun = Instant::now();
    for partition in 0..PARTITIONS {
        store.trim(partition, BATCHES / PARTITIONS / 2)?;
    }
    report(
        "retention drops half",
        format!(
            "{:.0} ms, then {:.2} x the payload on disk",
            begun.elapsed().as_secs_f64() * 1e3,
            folder_bytes(dir) as f64 / 1e6 / megabytes
        ),
    );
    report("peak memory", peak_memory());
    Ok(())
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [store, phase, dir] = &arguments[..] {
        let dir = Path::new(dir);
        return match (store.as_str(), phase.as_str()) {
            ("redb", "until-kill") => measure_until_kill::<Redb>(dir),
            ("redb", _) => measure_after_kill::<Redb>(dir),
            ("fjall", "until-kill") => measure_until_kill::<Fjall>(dir),
            ("fjall", _) => measure_after_kill::<Fjall>(dir),
            (other, _) => Err(format!("no such store: {other}").into()),
        };
    }
    let parent = arguments.first().map_or_else(std::env::temp_dir, PathBuf::from);
    for _ in 0..3 {
        for store in ["redb", "fjall"] {
            let dir = tempfile::tempdir_in(&parent)?;
            for phase in ["until-kill", "after-kill"] {
                let status =
                    std::process::Command::new(std::env::current_exe()?).args([store, phase]).arg(dir.path()).status()?;
                if status.code().is_some_and(|code| code != 0) {
                    return Err(format!("{store}: {status}").into());
                }
            }
        }
    }
    Ok(())
}
