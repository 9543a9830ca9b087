//! Ends transactions that an earlier process of the same name left open, or that a broker forgot to mark.
//!
//! # Left open
//!
//! The broker ends one if a producer of the name asks for an id. Until the markers are written, which takes some milliseconds, it
//! answers that it is busy, and the client library asks again after half a second. Asked here before, it answers the library's
//! own request at once. The library's request is the last: it is made after all of these were answered. One without an answer may
//! reach the broker after the library's, so the result is [`OpenTransactionEnd::Unanswered`].
//!
//! # Hanging
//!
//! To the coordinator a transaction that a broker forgot to mark is over. A partition's log knows it by its producer, whose id stays
//! with the name, so a marker of any later transaction of the name ends it. One without records is made: the partitions are added,
//! and it is ended.

use std::time::{Duration, Instant};

use super::broker::parse_address;
use super::connection::{BrokerConnection, ConnectionError, Result};
use super::messages::{
    ApiKey, BrokerAddress, ProducerId, read_add_partitions, read_find_coordinator, read_init_producer_id, read_transaction_error,
    write_add_offsets, write_add_partitions, write_end_transaction, write_find_coordinator, write_init_producer_id,
};
use super::options::FetchOptions;
use crate::TopicPartition;

/// Pause between two requests while the broker is busy.
const PAUSE: Duration = Duration::from_millis(10);
/// Time after which no further broker is asked, and the client library ends the transaction. Connecting may take as long.
const PATIENCE: Duration = Duration::from_secs(2);
/// An earlier transaction of the name is being ended.
const CONCURRENT_TRANSACTIONS: i16 = 51;
/// The coordinator is being loaded, is not available, or is another broker by now.
const COORDINATOR_MOVES: [i16; 3] = [14, 15, 16];
/// Longest time that a transaction without records may be open, and that its end is requested for. After it the broker aborts it,
/// with everything that was to be committed.
const EMPTY_TRANSACTION_TIMEOUT: Duration = Duration::from_mins(1);
/// Pause before the end is asked for again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Result of the request to end a transaction.
#[derive(Debug)]
pub enum OpenTransactionEnd {
    /// `error`: the code in the last answer, 0 for none.
    Answered { error: i16, requests: u32 },
    /// No request for an id was sent.
    NotAsked(ConnectionError),
    /// A request for a transactional id may still reach the broker and fence the id's present producer.
    Unanswered(ConnectionError),
}

/// Asks until no transaction of the name is open.
pub fn end_open_transaction(options: &FetchOptions, id: &str, transaction_timeout: Duration) -> OpenTransactionEnd {
    let begun = Instant::now();
    let mut coordinator = match Coordinator::connect(options, id, begun) {
        Ok(coordinator) => coordinator,
        Err(error) => return OpenTransactionEnd::NotAsked(error),
    };
    match coordinator.init_producer_id(transaction_timeout) {
        Ok((answer, requests)) => OpenTransactionEnd::Answered { error: answer.err().unwrap_or(0), requests },
        Err(error) => OpenTransactionEnd::Unanswered(error),
    }
}

/// Parts of a hanging transaction to end, and how to end them.
#[derive(Debug, Clone, Copy)]
pub struct HangingParts<'a> {
    pub outputs: &'a [TopicPartition],
    /// The group whose positions are ended, too.
    pub group: Option<&'a str>,
    pub is_committed: bool,
}

/// Ends what hangs of the name's transactions in these partitions. It is over when the markers are written, some milliseconds later.
/// Returns an error, and whether a request for an id may still come to the broker.
pub fn end_hanging_transaction(
    options: &FetchOptions,
    id: &str,
    parts: HangingParts<'_>,
) -> std::result::Result<(), (ConnectionError, bool)> {
    let mut coordinator = Coordinator::connect(options, id, Instant::now()).map_err(|error| (error, false))?;
    let (answer, _) = coordinator.init_producer_id(EMPTY_TRANSACTION_TIMEOUT).map_err(|error| (error, true))?;
    let producer = answer.map_err(|code| (refused("give a producer id", id, code), false))?;
    coordinator.begin_empty_transaction(producer, parts).map_err(|error| (error, false))?;
    // From here on the next producer of the name would abort it, so the end is asked for until it is answered.
    let begun = Instant::now();
    loop {
        let error = match coordinator.end_transaction(producer, parts.is_committed) {
            // The coordinator is at it.
            Ok(Ok(()) | Err(CONCURRENT_TRANSACTIONS)) => return Ok(()),
            Ok(Err(code)) if !COORDINATOR_MOVES.contains(&code) => return Err((refused("end the transaction", id, code), false)),
            Ok(Err(code)) => refused("end the transaction", id, code),
            Err(error) => error,
        };
        if begun.elapsed() > EMPTY_TRANSACTION_TIMEOUT {
            return Err((error, false));
        }
        std::thread::sleep(RECONNECT_PAUSE);
        if let Ok(connected) = Coordinator::connect(options, id, Instant::now()) {
            coordinator = connected;
        }
    }
}

fn refused(what: &str, id: &str, code: i16) -> ConnectionError {
    ConnectionError::Refused(format!("the coordinator of transactions of {id} did not {what} (error {code})"))
}

/// A connection to the broker that has the transactions of a name.
struct Coordinator<'a> {
    connection: BrokerConnection,
    id: &'a str,
    begun: Instant,
}

impl<'a> Coordinator<'a> {
    fn connect(options: &FetchOptions, id: &'a str, begun: Instant) -> Result<Self> {
        let quick = FetchOptions { timeout: options.timeout.min(PATIENCE), max_wait: Duration::ZERO, ..options.clone() };
        let coordinator = find_coordinator(&quick, id, begun)?;
        let mut connection = BrokerConnection::open(&coordinator.host, coordinator.port, &quick, |_| {})?;
        // The same timeout as the library's: after a shorter one, the outcome of the request would be unknown.
        connection.set_answer_timeout(options.timeout)?;
        Ok(Self { connection, id, begun })
    }

    /// Sends a request again while the broker is busy with the transaction before. Returns the answer, and how often it was sent.
    fn request<T>(
        &mut self,
        api: ApiKey,
        write: impl Fn(&mut Vec<u8>),
        read: impl Fn(&[u8]) -> Result<std::result::Result<T, i16>>,
    ) -> Result<(std::result::Result<T, i16>, u32)> {
        let mut requests = 0;
        loop {
            let answer = read(self.connection.exchange(api, *api.versions().end(), &write)?)?;
            requests += 1;
            if !matches!(answer, Err(CONCURRENT_TRANSACTIONS)) || self.begun.elapsed() > PATIENCE {
                return Ok((answer, requests));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn init_producer_id(&mut self, transaction_timeout: Duration) -> Result<(std::result::Result<ProducerId, i16>, u32)> {
        let timeout_ms = i32::try_from(transaction_timeout.as_millis()).unwrap_or(i32::MAX);
        let id = self.id;
        self.request(
            ApiKey::InitProducerId,
            |body| write_init_producer_id(body, id, timeout_ms),
            |answer| Ok(read_init_producer_id(answer)?),
        )
    }

    /// Adds partitions, and the group's positions, to a transaction that thereby begins.
    fn begin_empty_transaction(&mut self, producer: ProducerId, parts: HangingParts<'_>) -> Result<()> {
        let id = self.id;
        if !parts.outputs.is_empty() {
            let write = |body: &mut Vec<u8>| write_add_partitions(body, id, producer, parts.outputs);
            let (added, _) = self.request(ApiKey::AddPartitionsToTxn, write, |answer| Ok(read_add_partitions(answer)?))?;
            added.map_err(|code| refused("take the partitions", id, code))?;
        }
        if let Some(group) = parts.group {
            let write = |body: &mut Vec<u8>| write_add_offsets(body, id, producer, group);
            let (added, _) = self.request(ApiKey::AddOffsetsToTxn, write, |answer| Ok(read_transaction_error(answer)?))?;
            added.map_err(|code| refused("take the group's positions", id, code))?;
        }
        Ok(())
    }

    fn end_transaction(&mut self, producer: ProducerId, is_committed: bool) -> Result<std::result::Result<(), i16>> {
        let id = self.id;
        let write = |body: &mut Vec<u8>| write_end_transaction(body, id, producer, is_committed);
        Ok(self.request(ApiKey::EndTxn, write, |answer| Ok(read_transaction_error(answer)?))?.0)
    }
}

/// Asks one configured broker after the other.
fn find_coordinator(options: &FetchOptions, id: &str, begun: Instant) -> Result<BrokerAddress> {
    let mut last = ConnectionError::Refused("no broker is configured".to_owned());
    for (host, port) in options.bootstrap.iter().filter_map(|address| parse_address(address)) {
        let find = || {
            let mut connection = BrokerConnection::open(&host, port, options, |_| {})?;
            let version = *ApiKey::FindCoordinator.versions().end();
            let answer = connection.exchange(ApiKey::FindCoordinator, version, |body| write_find_coordinator(body, id))?;
            read_find_coordinator(answer)?
                .map_err(|code| ConnectionError::Refused(format!("no coordinator for transactions of {id} (error {code})")))
        };
        match find() {
            Ok(coordinator) => return Ok(coordinator),
            Err(error) => last = error,
        }
        if begun.elapsed() > PATIENCE {
            break;
        }
    }
    Err(last)
}
