//! Ports for processes that are given theirs.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;

use anyhow::{Context, Result};

/// Below the ports that Linux gives to outgoing connections and to binds to port 0, so that none is taken while its process is
/// stopped.
const PORTS: Range<u16> = 12_000..32_000;
const TRIES: usize = 100;

/// Returns different ports of the loopback address that are free now.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    ports.copy_from_slice(&free_port_list(N)?);
    Ok(ports)
}

/// The same, for as many as are known at run time only.
pub fn free_port_list(count: usize) -> Result<Vec<u16>> {
    // All are held until there are enough, so that they differ.
    let listeners: Vec<TcpListener> = (0..count).map(|_| listener()).collect::<Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// Returns an address of this machine that is free now.
pub fn free_address() -> Result<SocketAddr> {
    let [port] = free_ports()?;
    Ok((Ipv4Addr::LOCALHOST, port).into())
}

fn listener() -> Result<TcpListener> {
    let random_port = || PORTS.start + (RandomState::new().hash_one(0) % PORTS.len() as u64) as u16;
    let mut tries = std::iter::repeat_with(|| TcpListener::bind((Ipv4Addr::LOCALHOST, random_port()))).take(TRIES);
    tries.find_map(Result::ok).with_context(|| format!("none of {TRIES} ports between {} and {} is free", PORTS.start, PORTS.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_are_free() {
        let ports: [u16; 50] = free_ports().unwrap();
        // Two of one number could not both be bound to.
        let held: Vec<TcpListener> = ports.iter().map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).unwrap()).collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)));
        drop(held);
    }
}
