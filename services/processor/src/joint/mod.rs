//! The stages that decide about several workloads together, a power budget or shared GPUs: windows, workloads, actuations and
//! models in; decisions, state and positions out in one atomic step.
//!
//! Such a stage needs everything that the cluster says, so one process at a time runs it: the owner of partition 0 of the windows in a
//! group of its own. The group is there for who owns that, and for fencing: whoever lost the partition has an old generation, and
//! its steps are refused, positions, decisions and state together. What is read is read outside the group, all partitions of
//! every input, from the positions that the group committed.

mod kind;
mod stage;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use eadt_bus::{BusError, Member, MemberOptions, Membership, Polled, Remedy, Step, TopicPartition, chaos};
use eadt_schemas::Topic;

use crate::metrics::{ClusterMetrics, GpuMetrics};
use crate::outputs::Names;
use crate::service::{Error, Service, commit, keep_on};
use kind::Kind;
use stage::Stage;

/// The partition of the windows whose owner runs the stage, and of the state topic that has its state.
const PARTITION: i32 = 0;
/// Longest wait for news of the group where there is nothing else to do.
const IDLE: Duration = Duration::from_millis(100);
const ITEMS: usize = 64;

/// Runs the cluster's stage until `shutdown`; blocks, so give it a thread. Without a budget it ends at once. Stopping commits what was
/// folded; what is left is for the next start, here or elsewhere.
pub fn run_cluster(service: &Service) -> Result<(), Error> {
    run::<ClusterMetrics>(service)
}

/// Runs the stage of shared GPUs, as [`run_cluster`]; it ends at once where it is not enabled.
pub fn run_gpu(service: &Service) -> Result<(), Error> {
    run::<GpuMetrics>(service)
}

fn run<K: Kind>(service: &Service) -> Result<(), Error> {
    if !K::is_on(&service.settings) {
        service.ready.set(true);
        return Ok(());
    }
    let kind = K::new(&service.metrics);
    keep_on(service, &kind.metrics().restarts, || {
        let ended = Session::open(service, &kind).and_then(Session::run);
        kind.runs(None);
        ended
    })
}

/// From joining the group to the first error.
struct Session<'a, K: Kind> {
    service: &'a Service,
    kind: &'a K,
    names: Names,
    member: Box<dyn Member>,
    /// Partitions of the windows that this member has.
    assigned: BTreeSet<i32>,
    stage: Option<Stage<K>>,
    /// When the first record was folded that is not committed yet.
    folded: Option<Instant>,
}

impl<'a, K: Kind> Session<'a, K> {
    fn open(service: &'a Service, kind: &'a K) -> Result<Self, BusError> {
        let settings = &service.settings;
        let member = service.bus.member(MemberOptions {
            group: format!("{}-{}", settings.group, K::NAME),
            membership: Membership::Transactional(format!("{}-{}", settings.instance, K::NAME)),
            topics: vec![format!("{}{}", settings.prefix, Topic::EfficiencyWindows).into()],
        })?;
        Ok(Self {
            service,
            kind,
            names: Names::new(&settings.prefix, settings.recorded()),
            member,
            assigned: BTreeSet::new(),
            stage: None,
            folded: None,
        })
    }

    fn run(mut self) -> Result<(), BusError> {
        let mut polled = Vec::new();
        while !self.service.shutdown.is_cancelled() {
            let patience = if self.stage.is_some() { Duration::ZERO } else { IDLE };
            match self.member.poll(ITEMS, patience, &mut polled) {
                Ok(()) => {}
                Err(error) if error.remedy == Remedy::Retry => {
                    tracing::debug!(%error, "polling again");
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
            for item in polled.drain(..) {
                match item {
                    Polled::Assigned(partitions) => self.assigned(&partitions)?,
                    Polled::Revoked(partitions) => {
                        chaos::reach("rebalance.revoked");
                        // Still ours: what is folded is committed before somebody else goes on.
                        self.commit()?;
                        self.drop_partitions(&partitions);
                    }
                    Polled::Lost(partitions) => {
                        if self.folded.is_some() && partitions.iter().any(|at| at.partition == PARTITION) {
                            let detail = "the partition was lost with uncommitted work";
                            return Err(BusError::new(Remedy::Restart, format!("folding in {}", K::WORDS), detail));
                        }
                        self.drop_partitions(&partitions);
                    }
                    // None of its partitions was started.
                    Polled::Record(_) | Polled::End { .. } => {}
                }
            }
            self.advance()?;
            self.service.ready.set(true);
        }
        self.commit()
    }

    fn assigned(&mut self, partitions: &[TopicPartition]) -> Result<(), BusError> {
        self.assigned.extend(partitions.iter().map(|at| at.partition));
        if let Some(stage) = &self.stage {
            let added = partitions.iter().find(|at| !stage.reads(at));
            return added.map_or(Ok(()), |at| {
                Err(BusError::new(Remedy::Restart, format!("reading for {}", K::WORDS), format!("{at} was added")))
            });
        }
        if self.assigned.contains(&PARTITION) {
            let stage = Stage::begin(self.service, &mut *self.member, &self.names, self.kind)?;
            self.kind.runs(Some(&self.service.settings));
            self.stage = Some(stage);
        }
        Ok(())
    }

    fn drop_partitions(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.assigned.remove(&at.partition);
        }
        if self.stage.is_some() && !self.assigned.contains(&PARTITION) {
            tracing::info!("{} goes on elsewhere", K::WORDS);
            self.stage = None;
            self.kind.runs(None);
        }
    }

    /// Reads, folds, and commits what is due.
    fn advance(&mut self) -> Result<(), BusError> {
        let Some(stage) = &mut self.stage else { return Ok(()) };
        stage.read()?;
        let folded = stage.fold(&self.names, self.kind);
        stage.balance(self.service.settings.buffer_bytes)?;
        if folded {
            self.folded.get_or_insert_with(Instant::now);
        }
        let limit = Duration::from_secs_f64(self.service.settings.commit_seconds);
        if stage.has_outputs() || self.folded.is_some_and(|since| since.elapsed() >= limit) {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), BusError> {
        let (Some(stage), Some(_)) = (&mut self.stage, self.folded.take()) else { return Ok(()) };
        let mut step = Step::default();
        stage.commit(&self.names, PARTITION, &mut step);
        let began = Instant::now();
        commit(self.service, &mut *self.member, &step)?;
        self.kind.metrics().commit_seconds.observe(began.elapsed().as_secs_f64());
        Ok(())
    }
}
