//! Ends a transaction that a killed process of the same name left open.
//!
//! The broker ends it if a producer of the name asks for an id. Until the markers are written, which takes some milliseconds, it
//! answers that it is busy, and the client library asks again after half a second. Asked here before, it answers the library's
//! own request at once. The library has the last word: its request comes after all of these were answered.

use std::time::{Duration, Instant};

use super::broker::parse_address;
use super::connection::{BrokerConnection, ConnectionError, Result};
use super::messages::{
    ApiKey, BrokerAddress, read_find_coordinator, read_init_producer_id, write_find_coordinator, write_init_producer_id,
};
use super::options::FetchOptions;

/// Pause between two requests while the broker is busy.
const PAUSE: Duration = Duration::from_millis(10);
/// Beyond this it is left to the client library.
const PATIENCE: Duration = Duration::from_secs(2);
/// An earlier transaction of the name is being ended.
const CONCURRENT_TRANSACTIONS: i16 = 51;

/// What the broker answered in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedTransaction {
    /// The code of the error, 0 for none.
    pub error: i16,
    pub requests: u32,
}

/// Asks until no transaction of the name is open.
pub fn end_open_transaction(options: &FetchOptions, id: &str, transaction_timeout: Duration) -> Result<EndedTransaction> {
    let coordinator = find_coordinator(options, id)?;
    let mut connection = BrokerConnection::open(&coordinator.host, coordinator.port, options, |_| {})?;
    let timeout_ms = i32::try_from(transaction_timeout.as_millis()).unwrap_or(i32::MAX);
    let version = *ApiKey::InitProducerId.versions().end();
    let begun = Instant::now();
    let mut requests = 0;
    loop {
        let answer = connection.exchange(ApiKey::InitProducerId, version, |body| write_init_producer_id(body, id, timeout_ms))?;
        let error = read_init_producer_id(answer)?;
        requests += 1;
        if error != CONCURRENT_TRANSACTIONS || begun.elapsed() > PATIENCE {
            return Ok(EndedTransaction { error, requests });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Asks one configured broker after the other.
fn find_coordinator(options: &FetchOptions, id: &str) -> Result<BrokerAddress> {
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
    }
    Err(last)
}
