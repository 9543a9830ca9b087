//! A proxy between clients and one broker that knows where Kafka's requests begin and end, so that chosen ones can be kept back.
//!
//! The broker advertises the proxy's port on a listener of its own; brokers and all other clients use the other one.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// A request of a transaction, by its key on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum Request {
    Produce = 0,
    InitProducerId = 22,
    AddPartitionsToTxn = 24,
    AddOffsetsToTxn = 25,
    EndTxn = 26,
    TxnOffsetCommit = 28,
}

/// Treatment of the next request of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The network is slow: it arrives after so long, even if its sender is gone.
    Delay(Duration),
    /// It is kept back, and its connection is lost. [`Proxy::deliver`] sends it on, behind whatever was sent meanwhile.
    Hold,
}

#[derive(Debug, Default)]
struct State {
    next: Option<(Request, Next)>,
    held: Option<Vec<u8>>,
    /// Connections by their numbers below this one carry nothing any more.
    first_alive: u64,
    connections: u64,
}

#[derive(Debug)]
pub struct Proxy {
    port: u16,
    upstream: SocketAddr,
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Listens on a free port of the loopback.
    pub fn start(upstream: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening as a proxy")?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        // Ends with the process: later clients find the broker gone and are cut off.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if let Ok(broker) = TcpStream::connect(upstream) {
                    // A pair that cannot be set up is a lost connection.
                    drop(carry(client, broker, Arc::clone(&shared)));
                }
            }
        });
        Ok(Self { port, upstream, state })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn on_next(&self, request: Request, next: Next) {
        lock(&self.state).next = Some((request, next));
    }

    /// Waits until the request that was chosen has come.
    pub fn await_taken(&self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        while let Some((request, _)) = lock(&self.state).next {
            ensure!(begun.elapsed() < limit, "no {request:?} came within {limit:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    pub fn await_held(&self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        while lock(&self.state).held.is_none() {
            ensure!(begun.elapsed() < limit, "nothing that could be held came within {limit:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Sends the held end of a transaction to the broker, over a connection of its own; the error code of the answer, 0 for none.
    pub fn deliver_end(&self) -> Result<i16> {
        let answer = self.deliver()?;
        // Length, correlation id, throttle time, error code: versions 0 and 1, which librdkafka speaks.
        let code = answer.get(12..14).context("an answer that is too short")?;
        Ok(i16::from_be_bytes([code[0], code[1]]))
    }

    /// Sends the held request to the broker, over a connection of its own; the answer.
    pub fn deliver(&self) -> Result<Vec<u8>> {
        let frame = lock(&self.state).held.take().context("nothing is held")?;
        let mut broker = TcpStream::connect(self.upstream)?;
        broker.set_read_timeout(Some(Duration::from_secs(20)))?;
        broker.write_all(&frame)?;
        read_frame(&mut broker)?.context("the broker hung up")
    }

    /// Lets every connection that there is carry nothing any more, in either direction, and keeps it open: neither side hears that the
    /// other one is gone. Later ones carry. Returns how many connections were made so far.
    pub fn drop_silently(&self) -> u64 {
        let mut state = lock(&self.state);
        state.first_alive = state.connections;
        state.connections
    }

    /// Throws the held request away.
    pub fn lose(&self) {
        lock(&self.state).held = None;
    }
}

/// One connection of the proxy.
#[derive(Debug, Clone)]
struct Carried {
    state: Arc<Mutex<State>>,
    number: u64,
}

impl Carried {
    fn is_silent(&self) -> bool {
        self.number < lock(&self.state).first_alive
    }
}

fn carry(client: TcpStream, broker: TcpStream, state: Arc<Mutex<State>>) -> Result<()> {
    client.set_nodelay(true)?;
    broker.set_nodelay(true)?;
    let number = {
        let mut state = lock(&state);
        state.connections += 1;
        state.connections - 1
    };
    let carried = Carried { state, number };
    let (mut from_broker, mut to_client, answering) = (broker.try_clone()?, client.try_clone()?, carried.clone());
    std::thread::spawn(move || {
        // Either side may hang up at any time.
        drop(answers(&mut from_broker, &mut to_client, &answering));
        if !answering.is_silent() {
            drop(to_client.shutdown(Shutdown::Both));
        }
    });
    std::thread::spawn(move || drop(requests(client, broker, &carried)));
    Ok(())
}

fn answers(broker: &mut TcpStream, client: &mut TcpStream, carried: &Carried) -> std::io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = broker.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        if !carried.is_silent() {
            client.write_all(&bytes[..count])?;
        }
    }
}

fn requests(mut client: TcpStream, mut broker: TcpStream, carried: &Carried) -> Result<()> {
    while let Some(frame) = read_frame(&mut client)? {
        if carried.is_silent() {
            continue;
        }
        let key = i16::from_be_bytes([frame[4], frame[5]]);
        let next = lock(&carried.state).next.take_if(|(request, _)| *request as i16 == key);
        match next.map(|(_, next)| next) {
            None => {}
            Some(Next::Delay(time)) => std::thread::sleep(time),
            Some(Next::Hold) => {
                lock(&carried.state).held = Some(frame);
                client.shutdown(Shutdown::Both)?;
                broker.shutdown(Shutdown::Both)?;
                return Ok(());
            }
        }
        broker.write_all(&frame)?;
    }
    broker.shutdown(Shutdown::Both)?;
    Ok(())
}

/// A length and as many bytes; `None` at the end.
fn read_frame(from: &mut TcpStream) -> Result<Option<Vec<u8>>> {
    let mut length = [0_u8; 4];
    match from.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let count = u32::from_be_bytes(length) as usize;
    ensure!((2..=100 << 20).contains(&count), "{count} bytes are no request");
    let mut frame = vec![0; 4 + count];
    frame[..4].copy_from_slice(&length);
    from.read_exact(&mut frame[4..])?;
    Ok(Some(frame))
}
