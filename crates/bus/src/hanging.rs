//! Ends a member's own hanging transactions if a start cannot go on: a broker forgot to mark a part of an earlier step, and
//! nothing after it is readable (docs/adr/0017-a-processor-ends-its-own-hanging-transactions.md).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::{
    Bus, BusError, ConsumerRecord, GroupMember, IsolationLevel, PartitionReader, Remedy, Result, StartOffset, TopicPartition,
    TransactionEnd, UnreadEnd, read_within,
};

/// Pause before a partition is tried again: its broker may have forgotten this end, too.
const END_AGAIN: Duration = Duration::from_mins(1);

/// Logs that these partitions are waited for.
pub fn warn_of_waiting(partitions: &[TopicPartition]) {
    for at in partitions {
        tracing::warn!(
            %at,
            "nothing comes before its end: a broker of it is away, or another process's transaction in it is open; it is waited for \
             (docs/operate/operations.md, \"A transaction that stays open\")"
        );
    }
}

/// Ends what earlier members of a name left open, and remembers where.
#[derive(Debug)]
pub struct HangingEnds {
    stall: Duration,
    ended: BTreeMap<TopicPartition, Instant>,
    has_ended_positions: bool,
}

impl Default for HangingEnds {
    fn default() -> Self {
        Self::after(Self::STALL)
    }
}

impl HangingEnds {
    /// A partition that gives nothing for so long and is not at its end may have a hanging transaction: a broker ends an ordinary
    /// one of a killed process within 20 s.
    pub const STALL: Duration = Duration::from_secs(25);

    /// Builds it with another time than [`Self::STALL`].
    pub fn after(stall: Duration) -> Self {
        Self { stall, ended: BTreeMap::new(), has_ended_positions: false }
    }

    /// Returns whether anything was ended.
    pub fn has_ended_any(&self) -> bool {
        self.has_ended_positions || !self.ended.is_empty()
    }

    /// Fetches the group's positions. If none can be had, a transaction may hang in them: it is aborted, and they are fetched again.
    /// Records after these positions are then processed again.
    pub fn fetch_positions(&mut self, member: &mut dyn GroupMember, inputs: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        match member.committed(inputs) {
            Err(error) if error.remedy == Remedy::Retry && !inputs.is_empty() => {
                tracing::warn!(%error, "ending what an earlier process of this name may have left open in the group's positions");
                match member.end_hanging(&[], true, TransactionEnd::Abort) {
                    Ok(()) => {
                        self.has_ended_positions = true;
                        member.committed(inputs)
                    }
                    Err(failure) if failure.remedy == Remedy::Retry => {
                        tracing::warn!(error = %failure, "a transaction that is open in the group's positions could not be aborted");
                        Err(error)
                    }
                    Err(failure) => Err(failure),
                }
            }
            fetched => fetched,
        }
    }

    /// Ends what earlier processes of this name left open in these partitions. What stays open is another process's, and is
    /// waited for. It is tried again a minute later, and at once if no broker did it.
    pub fn end(&mut self, member: &mut dyn GroupMember, partitions: Vec<TopicPartition>, end: TransactionEnd) -> Result<()> {
        let is_recent = |at: &TopicPartition| self.ended.get(at).is_some_and(|ended| ended.elapsed() < END_AGAIN);
        let (again, first): (Vec<_>, Vec<_>) = partitions.into_iter().partition(is_recent);
        warn_of_waiting(&again);
        if first.is_empty() {
            return Ok(());
        }
        for at in &first {
            tracing::warn!(
                %at,
                ?end,
                "nothing comes before its end, as where a broker forgot to end a transaction: what this name left open is ended \
                 (docs/operate/operations.md, \"A transaction that stays open\")"
            );
        }
        match member.end_hanging(&first, false, end) {
            Ok(()) => self.ended.extend(first.into_iter().map(|at| (at, Instant::now()))),
            Err(error) if error.remedy == Remedy::Retry => {
                tracing::warn!(%error, "transactions that are open in these partitions could not be ended; it is tried again");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads partitions that this member writes, as [`crate::read_to_end`] does, and ends what hangs in them. After that `each` is
    /// given everything once more. `None` if `stopped` returned true first: then not all was read.
    pub fn read_to_end<E: From<BusError>>(
        &mut self,
        bus: &dyn Bus,
        member: &mut dyn GroupMember,
        from: &[(TopicPartition, StartOffset)],
        end: TransactionEnd,
        stopped: impl Fn() -> bool,
        mut each: impl FnMut(ConsumerRecord) -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<Box<dyn PartitionReader>>, E> {
        loop {
            match read_within(bus, from, IsolationLevel::ReadCommitted, self.stall, &stopped, &mut each)? {
                Ok(reader) => return Ok(Some(reader)),
                Err(UnreadEnd::Stopped) => return Ok(None),
                // If the caller was stopped, a successor may have an open transaction already, which must not be ended.
                Err(UnreadEnd::Stalled(_)) if stopped() => return Ok(None),
                Err(UnreadEnd::Stalled(partitions)) => self.end(member, partitions, end)?,
            }
        }
    }
}
