//! The loop: records in, merged and folded; outputs, state and positions out in one atomic step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{
    Bus, BusError, Member, MemberOptions, Membership, Outgoing, Patience, Polled, Remedy, Step, TopicPartition, chaos,
};
use eadt_core::FoldSettings;
use eadt_service::http::Ready;
use eadt_service::{Metrics, Shutdown};
use prometheus_client::metrics::counter::Counter;

use crate::heartbeat::{HeartbeatClock, Heartbeats};
use crate::metrics::ProcessorMetrics;
use crate::outputs::Names;
use crate::owned::{Owned, Surroundings};
use crate::positions::INPUTS;
use crate::settings::Settings;

/// Records taken from the bus at once.
const BATCH: usize = 4096;
/// Records folded before what waits for a commit is looked at: each may be a dead letter, which takes some kilobytes.
const FOLDED_AT_ONCE: usize = 256;
/// Longest wait for the next record; it bounds how late a commit that waits for company is made.
const POLL: Duration = Duration::from_millis(5);
/// Dead letters are committed once there are so many.
const MAX_DEAD_LETTERS: usize = 1_000;
/// State may be a twentieth of what is read: every byte read earns a twentieth of a byte of state, every commit spends its own.
/// A commit that cannot be paid for waits, but never longer than [`MAX_LINGER`]; state below this size is never waited for.
const LARGE_STATE: usize = 4 << 20;
const STATE_SHARE: usize = 20;
/// What may be earned ahead: between the ends of two windows nothing is committed, and at an end every workload is.
const MOST_EARNED: usize = 64 << 20;
/// Longest time to fold what is left when the end is asked for.
const DRAIN: Duration = Duration::from_secs(10);
const MAX_LINGER: Duration = Duration::from_secs(5);
/// Longest pause before a session begins anew.
const MAX_PAUSE: f64 = 10.0;
/// What is tried again, in the words of the log lines.
const COMMITTING: &str = "the log does not take what was decided";
/// An output that waits for a commit takes memory: this many are committed at once.
const MAX_OUTPUTS: usize = 8_192;

/// Why the processor ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start: {0}")]
    Settings(String),
    #[error("the bus refuses the processor")]
    Bus(#[from] BusError),
}

/// What the processor works with.
#[derive(Debug)]
pub struct Service {
    pub settings: Settings,
    pub bus: Arc<dyn Bus>,
    /// The clock that the log's stamps come from, for heartbeats only.
    pub clock: HeartbeatClock,
    pub shutdown: Shutdown,
    pub metrics: Metrics,
    /// Set once the state of the first partitions is restored.
    pub ready: Ready,
}

/// Runs until `shutdown`; blocks, so give it a thread. Stopping folds what the inputs held when it was asked for, for at most ten
/// seconds, commits, and closes no window early.
pub fn run(service: &Service) -> Result<(), Error> {
    let metrics = ProcessorMetrics::new(&service.metrics);
    keep_on(service, &metrics.restarts, || Session::open(service, &metrics).and_then(Session::run))
}

/// Runs one session after another until `shutdown`, or until one fails in a way that another one would, too.
pub fn keep_on(service: &Service, restarts: &Counter, mut session: impl FnMut() -> Result<(), BusError>) -> Result<(), Error> {
    service.settings.check().map_err(Error::Settings)?;
    let mut pause = service.settings.retry_seconds;
    while !service.shutdown.is_cancelled() {
        let began = Instant::now();
        let ended = session();
        service.ready.set(false);
        match ended {
            Ok(()) => break,
            Err(_) if service.shutdown.is_cancelled() => break,
            Err(error) if error.remedy == Remedy::Stop => return Err(error.into()),
            Err(error) => {
                restarts.inc();
                if began.elapsed().as_secs_f64() > MAX_PAUSE {
                    pause = service.settings.retry_seconds;
                }
                tracing::warn!(%error, pause_seconds = pause, "beginning anew from the committed positions");
                wait(&service.shutdown, Duration::from_secs_f64(pause));
                pause = (pause * 2.0).min(MAX_PAUSE);
            }
        }
    }
    Ok(())
}

fn wait(shutdown: &Shutdown, time: Duration) {
    let until = Instant::now() + time;
    while !shutdown.is_cancelled() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10).min(time));
    }
}

/// Makes a step. Where nothing was done it is the same step again, until it succeeds or somebody stops the processor.
pub fn commit(service: &Service, member: &mut dyn Member, step: &Step) -> Result<(), BusError> {
    let least = Duration::from_secs_f64(service.settings.retry_seconds);
    let mut patience = Patience::new(least, Duration::from_secs_f64(MAX_PAUSE));
    loop {
        match member.commit(step.clone()) {
            Ok(()) => {
                patience.worked(COMMITTING);
                return Ok(());
            }
            Err(error) if error.remedy == Remedy::Retry && !service.shutdown.is_cancelled() => {
                wait(&service.shutdown, patience.failed(COMMITTING, &error));
            }
            Err(error) => return Err(error),
        }
    }
}

/// What waits for the next commit, and since when.
#[derive(Debug, Default)]
struct Waiting {
    outputs: Vec<Outgoing>,
    /// The partitions that said them: each is consistent in itself, so the others' state need not be written with theirs.
    speakers: BTreeSet<i32>,
    /// The first window or decision.
    output: Option<Instant>,
    dead_letters: usize,
    dead_letter: Option<Instant>,
    /// The first record that was folded.
    folded: Option<Instant>,
    input_bytes: usize,
}

/// What is still to be folded when the end is asked for: every input up to where it ended at that moment.
#[derive(Debug)]
struct Rest {
    ends: BTreeMap<i32, Vec<i64>>,
    until: Instant,
}

impl Rest {
    fn unread(&self, owned: &BTreeMap<i32, Owned>) -> u64 {
        let of_partition = |(number, ends): (&i32, &Vec<i64>)| -> u64 {
            let Some(owned) = owned.get(number) else { return 0 };
            ends.iter().zip(owned.positions()).map(|(end, position)| end.saturating_sub(position).max(0) as u64).sum()
        };
        self.ends.iter().map(of_partition).sum()
    }
}

/// Which partitions a commit writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Those that have something to say.
    Speakers,
    /// All that folded anything.
    Everything,
}

/// From joining the group to the first error.
struct Session<'a> {
    service: &'a Service,
    metrics: &'a ProcessorMetrics,
    names: Names,
    fold: FoldSettings,
    member: Box<dyn Member>,
    heartbeats: Heartbeats,
    owned: BTreeMap<i32, Owned>,
    /// Partitions of which not all inputs are assigned yet.
    arriving: BTreeMap<i32, BTreeSet<TopicPartition>>,
    waiting: Waiting,
    /// Bytes of state that input has paid for and no commit has spent.
    earned_bytes: usize,
}

impl<'a> Session<'a> {
    fn open(service: &'a Service, metrics: &'a ProcessorMetrics) -> Result<Self, BusError> {
        let settings = &service.settings;
        let member = service.bus.member(MemberOptions {
            group: settings.group.clone(),
            membership: Membership::Transactional(settings.instance.clone()),
            topics: INPUTS.iter().map(|topic| Arc::from(format!("{}{topic}", settings.prefix))).collect(),
        })?;
        Ok(Self {
            service,
            metrics,
            names: Names::new(&settings.prefix, settings.recorded()),
            fold: settings.fold(),
            member,
            heartbeats: Heartbeats::new(&*service.bus, settings, service.clock.clone())?,
            owned: BTreeMap::new(),
            arriving: BTreeMap::new(),
            waiting: Waiting::default(),
            earned_bytes: 0,
        })
    }

    fn run(mut self) -> Result<(), BusError> {
        let mut polled = Vec::new();
        let mut rest = None;
        while self.goes_on(&mut rest)? {
            match self.member.poll(BATCH, self.patience(), &mut polled) {
                Ok(()) => {}
                Err(error) if error.remedy == Remedy::Retry => {
                    tracing::debug!(%error, "polling again");
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
            let now = self.heartbeats.now();
            for item in polled.drain(..) {
                match item {
                    Polled::Record(record) => {
                        if let Some(owned) = self.owned.get_mut(&record.at.partition) {
                            owned.heard = now;
                            let bytes = owned.push(record);
                            self.waiting.input_bytes += bytes;
                            self.metrics.input_bytes.inc_by(bytes as u64);
                        }
                    }
                    Polled::End { at, position } => {
                        if let Some(owned) = self.owned.get_mut(&at.partition) {
                            owned.end(&at, position);
                        }
                    }
                    Polled::Assigned(partitions) => self.assigned(partitions)?,
                    Polled::Revoked(partitions) => {
                        chaos::reach("rebalance.revoked");
                        // Still ours: what is folded is committed before somebody else goes on.
                        self.commit(Scope::Everything)?;
                        self.drop_partitions(&partitions);
                    }
                    Polled::Lost(partitions) => {
                        tracing::warn!(partitions = partitions.len(), "partitions lost: what was folded of them is given up");
                        // Their outputs stand among the others' that wait: nothing of this session may be committed any more.
                        if self.waiting.folded.is_some() {
                            return Err(BusError::new(Remedy::Restart, "folding", "partitions were lost with uncommitted work"));
                        }
                        self.drop_partitions(&partitions);
                    }
                }
            }
            self.fold()?;
            self.beat()?;
            if let Some(scope) = self.due() {
                self.commit(scope)?;
            }
            if self.arriving.is_empty() {
                self.service.ready.set(true);
            }
        }
        self.commit(Scope::Everything)
    }

    /// Until the end is asked for, and then until what was there at that moment is folded.
    fn goes_on(&self, rest: &mut Option<Rest>) -> Result<bool, BusError> {
        if !self.service.shutdown.is_cancelled() {
            return Ok(true);
        }
        if rest.is_none() {
            let mut ends = BTreeMap::new();
            for (number, owned) in &self.owned {
                let highs = owned.inputs().iter().map(|at| Ok(self.service.bus.watermarks(at)?.high));
                ends.insert(*number, highs.collect::<Result<_, BusError>>()?);
            }
            *rest = Some(Rest { ends, until: Instant::now() + DRAIN });
        }
        let Some(rest) = rest else { return Ok(false) };
        let unread = rest.unread(&self.owned);
        if unread > 0 && Instant::now() >= rest.until {
            tracing::warn!(unread, "stopped before everything was folded; the next start goes on there");
            return Ok(false);
        }
        Ok(unread > 0)
    }

    fn assigned(&mut self, partitions: Vec<TopicPartition>) -> Result<(), BusError> {
        let mut numbers = BTreeSet::new();
        for at in partitions {
            numbers.insert(at.partition);
            self.arriving.entry(at.partition).or_default().insert(at);
        }
        // Inputs of one number come together where the assignor is `range`.
        numbers.retain(|number| self.arriving.get(number).is_some_and(|inputs| inputs.len() == INPUTS.len()));
        let numbers: Vec<i32> = numbers.into_iter().collect();
        if !numbers.is_empty() {
            self.arriving.retain(|number, _| !numbers.contains(number));
            let with = Surroundings {
                bus: &*self.service.bus,
                names: &self.names,
                settings: &self.fold,
                metrics: self.metrics,
                shutdown: &self.service.shutdown,
            };
            self.owned.append(&mut Owned::begin(&numbers, &mut *self.member, self.heartbeats.now(), &with)?);
        }
        if let Some((number, inputs)) = self.arriving.first_key_value() {
            let detail = format!(
                "only {} of the {} inputs of partition {number} were assigned: all inputs need the same partition count (run `eadt topics apply`) and the group the assignor `range`",
                inputs.len(),
                INPUTS.len()
            );
            return Err(BusError::new(Remedy::Stop, format!("joining group {}", self.service.settings.group), detail));
        }
        self.gauges();
        Ok(())
    }

    fn drop_partitions(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.owned.remove(&at.partition);
            self.arriving.remove(&at.partition);
        }
        self.gauges();
    }

    fn gauges(&self) {
        self.metrics.partitions.set(self.owned.len() as i64);
        let sizes = self.owned.values().map(Owned::size);
        let (workloads, sources) = sizes.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        self.metrics.workloads.set(workloads as i64);
        self.metrics.sources.set(sources as i64);
        self.metrics.buffered_bytes.set(self.owned.values().map(Owned::buffered).sum::<usize>() as i64);
    }

    fn fold(&mut self) -> Result<(), BusError> {
        let inputs = self.owned.len() * INPUTS.len();
        // Each input may hold its part of the budget, but at least one good batch.
        let budget = (self.service.settings.buffer_bytes / inputs.max(1)).max(64 << 10);
        for number in self.owned.keys().copied().collect::<Vec<_>>() {
            while let Some(owned) = self.owned.get_mut(&number) {
                let folded = owned.fold(FOLDED_AT_ONCE, &self.names, &mut self.waiting.outputs, self.metrics);
                let now = Instant::now();
                if folded.records > 0 {
                    self.waiting.folded.get_or_insert(now);
                }
                if folded.outputs + folded.dead_letters > 0 {
                    self.waiting.speakers.insert(number);
                }
                if folded.outputs > 0 {
                    self.waiting.output.get_or_insert(now);
                }
                if folded.dead_letters > 0 {
                    self.waiting.dead_letters += folded.dead_letters;
                    self.waiting.dead_letter.get_or_insert(now);
                }
                if self.waiting.outputs.len() >= MAX_OUTPUTS || self.waiting.dead_letters >= MAX_DEAD_LETTERS {
                    self.commit(Scope::Speakers)?;
                }
                if folded.records < FOLDED_AT_ONCE {
                    break;
                }
            }
            if let Some(owned) = self.owned.get_mut(&number) {
                owned.balance(&mut *self.member, budget)?;
            }
        }
        Ok(())
    }

    fn beat(&mut self) -> Result<(), BusError> {
        if chaos::is_off("heartbeats") {
            return Ok(());
        }
        for owned in self.owned.values_mut() {
            let (heard, sent) = self.heartbeats.beat(owned.number, owned.heard, owned.telemetry_end())?;
            owned.heard = heard;
            self.metrics.heartbeats.inc_by(u64::from(sent));
        }
        Ok(())
    }

    /// How long an output waits for company.
    fn linger(&self) -> Duration {
        let speakers = self.waiting.speakers.iter().filter_map(|number| self.owned.get(number));
        let state_bytes: usize = speakers.map(|owned| owned.state_bytes).sum();
        let cheap = state_bytes < LARGE_STATE || self.earned() >= state_bytes;
        if cheap { Duration::from_millis(self.service.settings.linger_milliseconds) } else { MAX_LINGER }
    }

    /// How long the next record may be waited for: no output waits for it longer than it lingers.
    fn patience(&self) -> Duration {
        self.waiting.output.map_or(POLL, |since| self.linger().saturating_sub(since.elapsed()).min(POLL))
    }

    fn due(&self) -> Option<Scope> {
        let settings = &self.service.settings;
        let since = |at: Option<Instant>, limit: Duration| at.is_some_and(|at| at.elapsed() >= limit);
        if since(self.waiting.folded, Duration::from_secs_f64(settings.commit_seconds)) {
            return Some(Scope::Everything);
        }
        let said = since(self.waiting.output, self.linger())
            || self.waiting.dead_letters >= MAX_DEAD_LETTERS
            || since(self.waiting.dead_letter, Duration::from_secs_f64(settings.dead_letter_seconds));
        said.then_some(Scope::Speakers)
    }

    /// Bytes of state that the input so far has paid for.
    fn earned(&self) -> usize {
        (self.earned_bytes + self.waiting.input_bytes / STATE_SHARE).min(MOST_EARNED)
    }

    /// One atomic step with everything that was said, and everything that was folded in the partitions concerned.
    fn commit(&mut self, scope: Scope) -> Result<(), BusError> {
        let speakers = std::mem::take(&mut self.waiting.speakers);
        let concerned = |owned: &Owned| scope == Scope::Everything || speakers.contains(&owned.number);
        if !self.owned.values().any(|owned| owned.is_dirty() && concerned(owned)) {
            return Ok(());
        }
        let earned = self.earned();
        let waiting = std::mem::take(&mut self.waiting);
        let mut step = Step { outputs: waiting.outputs, positions: Vec::new() };
        if chaos::is_off("atomic-steps") {
            let outputs = std::mem::take(&mut step.outputs);
            chaos::reach("step.outputs");
            self.member.commit(Step { outputs, positions: Vec::new() })?;
            chaos::reach("step.torn");
        }
        let concerned = self.owned.values_mut().filter(|owned| concerned(owned));
        let state_bytes: usize = concerned.map(|owned| owned.commit(&self.names, &mut step)).sum();
        if self.owned.values().any(Owned::is_dirty) {
            self.waiting.folded = waiting.folded;
        }
        self.earned_bytes = earned.saturating_sub(state_bytes);
        let began = Instant::now();
        commit(self.service, &mut *self.member, &step)?;
        self.metrics.commit_seconds.observe(began.elapsed().as_secs_f64());
        self.metrics.state_bytes.inc_by(state_bytes as u64);
        self.gauges();
        Ok(())
    }
}
