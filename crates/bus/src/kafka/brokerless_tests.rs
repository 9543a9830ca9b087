//! A broker that knows no broker for a while, as one does that was paused and that its cluster has not taken back yet.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::mock::until;
use super::{FetchPath, KafkaBus, KafkaOptions};
use crate::{Bus, Remedy};

const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;
const TOPIC: &str = "in";

/// Answers requests for versions and metadata, and no others.
struct LoneBroker {
    port: u16,
    is_fenced: Arc<AtomicBool>,
}

impl LoneBroker {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, is_fenced) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::new(false)));
        let fenced = Arc::clone(&is_fenced);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let fenced = Arc::clone(&fenced);
                // It ends with the connection.
                std::thread::spawn(move || drop(serve(stream, port, &fenced)));
            }
        });
        Self { port, is_fenced }
    }

    fn bus(&self) -> KafkaBus {
        let brokers = format!("127.0.0.1:{}", self.port);
        let options = KafkaOptions { brokers, properties: [].into(), client_id: "tests".into(), fetch: FetchPath::Librdkafka };
        KafkaBus::connect(options).unwrap()
    }
}

fn serve(mut stream: TcpStream, port: u16, is_fenced: &AtomicBool) -> Result<()> {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut request = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut request)?;
        let answer = match i16::from_be_bytes([request[0], request[1]]) {
            API_VERSIONS => versions(),
            METADATA => metadata(&request, port, is_fenced.load(Ordering::SeqCst)),
            // The connection is closed.
            _ => return Ok(()),
        };
        let mut whole = Vec::new();
        put_i32(&mut whole, 4 + answer.len() as i32);
        whole.extend_from_slice(&request[4..8]);
        whole.extend_from_slice(&answer);
        stream.write_all(&whole)?;
    }
}

fn put_i16(out: &mut Vec<u8>, value: i16) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_i32(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_i16(out, text.len() as i16);
    out.extend_from_slice(text.as_bytes());
}

/// Returns version 3 of the answer: metadata in version 1 at most.
fn versions() -> Vec<u8> {
    let mut out = Vec::new();
    put_i16(&mut out, 0);
    // Lists have one more than their length before them.
    out.push(3);
    for (api, newest) in [(METADATA, 1), (API_VERSIONS, 3)] {
        put_i16(&mut out, api);
        put_i16(&mut out, 0);
        put_i16(&mut out, newest);
        out.push(0);
    }
    put_i32(&mut out, 0);
    out.push(0);
    out
}

/// Returns version 1 of the answer. A fenced broker knows no broker, and no leader.
fn metadata(request: &[u8], port: u16, is_fenced: bool) -> Vec<u8> {
    let mut out = Vec::new();
    put_i32(&mut out, i32::from(!is_fenced));
    if !is_fenced {
        put_i32(&mut out, 1);
        put_text(&mut out, "127.0.0.1");
        put_i32(&mut out, i32::from(port));
        put_i16(&mut out, -1);
    }
    let node = if is_fenced { -1 } else { 1 };
    put_i32(&mut out, node);
    // No topic is asked about if the list is empty.
    if request[request.len() - 4..] == [0; 4] {
        put_i32(&mut out, 0);
        return out;
    }
    put_i32(&mut out, 1);
    put_i16(&mut out, 0);
    put_text(&mut out, TOPIC);
    out.push(0);
    put_i32(&mut out, 1);
    // Without a leader the partition has the error of that.
    put_i16(&mut out, if is_fenced { 5 } else { 0 });
    for field in [0, node, 1, 1, 1, 1] {
        put_i32(&mut out, field);
    }
    out
}

#[test]
fn a_bus_goes_on_by_a_new_client_after_a_broker_knew_no_broker() {
    let broker = LoneBroker::start();
    // The library gives its brokers up for good after most of such answers, not after all.
    for round in 0..4 {
        let bus = broker.bus();
        bus.probe(TOPIC).unwrap();
        let before = bus.shared.metadata_client.get();
        broker.is_fenced.store(true, Ordering::SeqCst);
        let error = bus.probe(TOPIC).unwrap_err();
        assert!(error.remedy == Remedy::Retry && error.detail.contains("knows no broker"), "{round}: {error}");
        broker.is_fenced.store(false, Ordering::SeqCst);
        until(|| bus.probe(TOPIC).is_ok());
        assert!(!Arc::ptr_eq(&before, &bus.shared.metadata_client.get()), "{round}");
    }
}

#[test]
fn topics_are_listed_once_a_broker_knows_itself_again() {
    let broker = LoneBroker::start();
    let bus = broker.bus();
    bus.probe(TOPIC).unwrap();
    broker.is_fenced.store(true, Ordering::SeqCst);
    let listing = std::thread::scope(|scope| {
        let listing = scope.spawn(|| {
            loop {
                match bus.partition_counts("") {
                    // Its connection may end meanwhile.
                    Err(error) if error.detail.contains("BrokerTransportFailure") => {}
                    listed => break listed,
                }
            }
        });
        until(|| bus.shared.fetch_metadata(None, super::PROBE).is_err());
        broker.is_fenced.store(false, Ordering::SeqCst);
        listing.join().unwrap()
    });
    assert_eq!(listing.unwrap().into_iter().collect::<Vec<_>>(), [(Arc::from(TOPIC), 1)]);
}
