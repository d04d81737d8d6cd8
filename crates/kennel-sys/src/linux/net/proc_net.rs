//! TCP sockets from `/proc/net`, which always lists all of them: the fallback.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::{Query, TcpSocket, number_of};

/// The IPv4 and IPv6 sockets that match `query`.
pub(super) fn rows(query: &Query) -> io::Result<Vec<TcpSocket>> {
    let mut rows = parse(&std::fs::read_to_string("/proc/net/tcp")?, query);
    match std::fs::read_to_string("/proc/net/tcp6") {
        Ok(text) => rows.extend(parse(&text, query)),
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(rows)
}

pub(super) fn parse(text: &str, query: &Query) -> Vec<TcpSocket> {
    let per_second = rustix::param::clock_ticks_per_second();
    let row = |line: &str| -> Option<TcpSocket> {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote) = (fields.next()?, fields.next()?);
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        // Few of many lines match: the rest of the others is not parsed.
        if state != number_of(query.state) {
            return None;
        }
        let (_, ticks) = fields.nth(1)?.split_once(':')?;
        let ticks = u64::from_str_radix(ticks, 16).ok()?;
        Some(TcpSocket {
            local: address(local)?,
            remote: address(remote)?,
            state: query.state,
            timer: Duration::from_millis(ticks * 1000 / per_second.max(1)),
            uid: fields.nth(1)?.parse().ok()?,
            inode: fields.nth(1)?.parse().ok()?,
        })
    };
    let rows = text.lines().skip(1).filter_map(row);
    rows.filter(|row| query.wants(row)).collect()
}

/// Parses `0100007F:1F90`: the address as 32-bit numbers in the byte order of this machine, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let number = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(number.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for part in 0..4 {
                bytes[part * 4..part * 4 + 4].copy_from_slice(&word(part * 8)?);
            }
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use super::super::{Ports, TcpState};
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_table_is_parsed() {
        let text = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0
   1: 0100007F:1F90 0100007F:C350 06 00000000:00000000 03:000005DC 00000000     0        0 0 3 0
 garbage
";
        let of = |state: TcpState| {
            let ports = Ports::Any;
            parse(text, &Query { state, ports })
        };
        let (listening, closed) = (of(TcpState::Listen), of(TcpState::TimeWait));
        assert_eq!((listening.len(), closed.len()), (1, 1));
        let rows = [&listening[0], &closed[0]];
        assert_eq!(rows[0].local, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(
            (rows[0].uid, rows[0].inode, rows[0].state),
            (1000, 4711, TcpState::Listen)
        );
        assert_eq!(rows[1].remote, "127.0.0.1:50000".parse().unwrap());
        let ticks = rustix::param::clock_ticks_per_second();
        assert_eq!(rows[1].timer, Duration::from_millis(1_500_000 / ticks));
        let six = address("00000000000000000000000001000000:0050").unwrap();
        assert_eq!(six, "[::1]:80".parse().unwrap());
    }
}
