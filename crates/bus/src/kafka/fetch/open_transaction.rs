//! Ends a transaction that a killed process of the same name left open.
//!
//! The broker ends it if a producer of the name asks for an id. Until the markers are written, which takes some milliseconds, it
//! answers that it is busy, and the client library asks again after half a second. Asked here before, it answers the library's
//! own request at once. The library's request is the last: it is made after all of these were answered. One without an answer may
//! reach the broker after the library's, so the result is [`OpenTransactionEnd::Unanswered`].

use std::time::{Duration, Instant};

use super::broker::parse_address;
use super::connection::{BrokerConnection, ConnectionError, Result};
use super::messages::{
    ApiKey, BrokerAddress, read_find_coordinator, read_init_producer_id, write_find_coordinator, write_init_producer_id,
};
use super::options::FetchOptions;

/// Pause between two requests while the broker is busy.
const PAUSE: Duration = Duration::from_millis(10);
/// After this long no other broker is asked, and none again: it is left to the client library. Connecting may take as long.
const PATIENCE: Duration = Duration::from_secs(2);
/// An earlier transaction of the name is being ended.
const CONCURRENT_TRANSACTIONS: i16 = 51;

/// What came of asking.
#[derive(Debug)]
pub enum OpenTransactionEnd {
    /// `error`: the code in the last answer, 0 for none.
    Answered { error: i16, requests: u32 },
    /// No request for an id was sent.
    NotAsked(ConnectionError),
    /// A request for an id may still come to the broker, and take the id from whoever has it then.
    Unanswered(ConnectionError),
}

/// Asks until no transaction of the name is open.
pub fn end_open_transaction(options: &FetchOptions, id: &str, transaction_timeout: Duration) -> OpenTransactionEnd {
    let quick = FetchOptions { timeout: options.timeout.min(PATIENCE), max_wait: Duration::ZERO, ..options.clone() };
    let begun = Instant::now();
    let open = || -> Result<BrokerConnection> {
        let coordinator = find_coordinator(&quick, id, begun)?;
        let connection = BrokerConnection::open(&coordinator.host, coordinator.port, &quick, |_| {})?;
        // As long as the library waits: whoever gives up earlier does not know what the request will do.
        connection.set_answer_timeout(options.timeout)?;
        Ok(connection)
    };
    let mut connection = match open() {
        Ok(connection) => connection,
        Err(error) => return OpenTransactionEnd::NotAsked(error),
    };
    let timeout_ms = i32::try_from(transaction_timeout.as_millis()).unwrap_or(i32::MAX);
    let version = *ApiKey::InitProducerId.versions().end();
    let mut ask = || -> Result<i16> {
        let answer = connection.exchange(ApiKey::InitProducerId, version, |body| write_init_producer_id(body, id, timeout_ms))?;
        Ok(read_init_producer_id(answer)?)
    };
    let mut requests = 0;
    loop {
        let error = match ask() {
            Ok(error) => error,
            Err(error) => return OpenTransactionEnd::Unanswered(error),
        };
        requests += 1;
        if error != CONCURRENT_TRANSACTIONS || begun.elapsed() > PATIENCE {
            return OpenTransactionEnd::Answered { error, requests };
        }
        std::thread::sleep(PAUSE);
    }
}

/// Asks one configured broker after the other.
fn find_coordinator(options: &FetchOptions, id: &str, begun: Instant) -> Result<BrokerAddress> {
    let mut last = ConnectionError::Refused("no broker is configured".to_owned());
    for (host, port) in options.bootstrap.iter().filter_map(|address| parse_address(address)) {
        let ask = || {
            let mut connection = BrokerConnection::open(&host, port, options, |_| {})?;
            let version = *ApiKey::FindCoordinator.versions().end();
            let answer = connection.exchange(ApiKey::FindCoordinator, version, |body| write_find_coordinator(body, id))?;
            read_find_coordinator(answer)?
                .map_err(|code| ConnectionError::Refused(format!("no coordinator for transactions of {id} (error {code})")))
        };
        match ask() {
            Ok(coordinator) => return Ok(coordinator),
            Err(error) => last = error,
        }
        if begun.elapsed() > PATIENCE {
            break;
        }
    }
    Err(last)
}
