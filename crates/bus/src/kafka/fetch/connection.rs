//! A connection to one broker: the socket, its two ends, and requests with their answers, one at a time.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::messages::{ApiKey, NegotiatedVersions, read_api_versions, write_api_versions};
use super::options::FetchOptions;
use super::security;
use super::wire::{WireError, WireReader, WireWriter};

/// Reserved for an answer before its bytes are there.
const STEP_BYTES: usize = 1 << 20;
/// A buffer for answers that is larger than this is not kept.
const KEPT_BYTES: usize = 8 << 20;

/// A connection that cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer within {} s", .0.as_secs_f64())]
    Unanswered(Duration),
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("an answer has {0} bytes, more than receive.message.max.bytes")]
    AnswerSize(usize),
    #[error("an answer came that was not asked for")]
    Order,
    /// The two do not come together: versions, certificates, user or password.
    #[error("{0}")]
    Refused(String),
}

pub type Result<T> = std::result::Result<T, ConnectionError>;

impl ConnectionError {
    /// The system reports a time that ran out as a resource that is unavailable.
    fn of_exchange(error: io::Error, timeout: Duration) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Unanswered(timeout),
            _ => Self::Io(error),
        }
    }
}

/// The bytes of a connection.
#[derive(Debug)]
pub enum BrokerStream {
    Plain(TcpStream),
    #[cfg(feature = "kafka-tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

impl Read for BrokerStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            #[cfg(feature = "kafka-tls")]
            Self::Tls(stream) => stream.read(into),
        }
    }
}

impl BrokerStream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes),
            #[cfg(feature = "kafka-tls")]
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

/// A broker that is ready for requests.
#[derive(Debug)]
pub struct BrokerConnection {
    stream: BrokerStream,
    client_id: String,
    correlation: i32,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    max_answer: usize,
    answer_timeout: Duration,
    pub versions: NegotiatedVersions,
    /// Time at which the broker ends the authentication; before it the client connects anew.
    expires: Option<Instant>,
}

fn open_socket(host: &str, port: u16, timeout: Duration) -> Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("the name {host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                // The timeout detects a broker that vanished.
                socket.set_read_timeout(Some(timeout))?;
                socket.set_write_timeout(Some(timeout))?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

impl BrokerConnection {
    /// Connects, and gives `opened` the socket before anything else is done on it.
    pub fn open(host: &str, port: u16, options: &FetchOptions, opened: impl FnOnce(&TcpStream)) -> Result<Self> {
        let socket = open_socket(host, port, options.timeout)?;
        opened(&socket);
        // A broker holds a request back for so long by itself.
        let answer_timeout = options.timeout + options.max_wait;
        socket.set_read_timeout(Some(answer_timeout))?;
        let stream = security::wrap_in_tls(socket, host, &options.security)?;
        let mut connection = Self {
            stream,
            client_id: options.client_id.clone(),
            correlation: 0,
            outbox: Vec::new(),
            inbox: Vec::new(),
            max_answer: options.answer_bytes,
            answer_timeout,
            versions: NegotiatedVersions { fetch: 0, metadata: 0 },
            expires: None,
        };
        let answer = connection.exchange(ApiKey::ApiVersions, 3, write_api_versions)?;
        connection.versions = read_api_versions(answer)?.map_err(ConnectionError::Refused)?;
        if let Some(lifetime) = security::authenticate(&mut connection, &options.security)? {
            connection.expires = Some(Instant::now() + lifetime.mul_f64(0.8));
        }
        Ok(connection)
    }

    /// Waits for an answer for so long from now on.
    pub fn set_answer_timeout(&mut self, timeout: Duration) -> Result<()> {
        #[cfg_attr(
            not(feature = "kafka-tls"),
            expect(clippy::infallible_destructuring_match, reason = "a feature adds a stream")
        )]
        let socket = match &self.stream {
            BrokerStream::Plain(socket) => socket,
            #[cfg(feature = "kafka-tls")]
            BrokerStream::Tls(stream) => &stream.sock,
        };
        socket.set_read_timeout(Some(timeout))?;
        self.answer_timeout = timeout;
        Ok(())
    }

    /// Returns whether the broker will soon take no more requests here.
    pub fn is_expired(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| now >= expires)
    }

    /// Sends a request and waits for its answer; returns the answer's body.
    pub fn exchange(&mut self, api: ApiKey, version: i16, body: impl FnOnce(&mut Vec<u8>)) -> Result<&[u8]> {
        self.correlation = self.correlation.wrapping_add(1);
        let out = &mut self.outbox;
        out.clear();
        out.put_i32(0);
        out.put_i16(api as i16);
        out.put_i16(version);
        out.put_i32(self.correlation);
        out.put_short_text(&self.client_id);
        if api.is_flexible() {
            out.put_no_tags();
        }
        body(out);
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_be_bytes());
        self.stream.send(out).map_err(|error| ConnectionError::of_exchange(error, self.answer_timeout))?;
        let length = self.read_answer()?;
        let mut reader = WireReader::new(&self.inbox[..length]);
        if reader.i32()? != self.correlation {
            return Err(ConnectionError::Order);
        }
        let mut head = 4;
        // `ApiVersions` has the old head, so that clients of any age read it.
        if api.is_flexible() && api != ApiKey::ApiVersions {
            let before = reader.rest();
            reader.skip_tags()?;
            head += before - reader.rest();
        }
        Ok(&self.inbox[head..length])
    }

    /// Reads an answer into the inbox, and returns its length.
    fn read_answer(&mut self) -> Result<usize> {
        let timeout = self.answer_timeout;
        let unanswered = |error: io::Error| ConnectionError::of_exchange(error, timeout);
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).map_err(unanswered)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > self.max_answer {
            return Err(ConnectionError::AnswerSize(length));
        }
        if self.inbox.len() > KEPT_BYTES && length < KEPT_BYTES {
            self.inbox = Vec::new();
        }
        let mut filled = 0;
        while filled < length {
            // A false length costs no memory beyond the received bytes.
            let until = length.min(self.inbox.len().max(filled + STEP_BYTES));
            if self.inbox.len() < until {
                self.inbox.resize(until, 0);
            }
            self.stream.read_exact(&mut self.inbox[filled..until]).map_err(unanswered)?;
            filled = until;
        }
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_ran_out_is_reported_with_its_length() {
        let text = |kind: io::ErrorKind, millis| {
            ConnectionError::of_exchange(io::Error::from(kind), Duration::from_millis(millis)).to_string()
        };
        assert_eq!(text(io::ErrorKind::WouldBlock, 9_000), "no answer within 9 s");
        assert_eq!(text(io::ErrorKind::TimedOut, 9_100), "no answer within 9.1 s");
        assert_eq!(text(io::ErrorKind::ConnectionReset, 9_000), io::Error::from(io::ErrorKind::ConnectionReset).to_string());
    }
}
