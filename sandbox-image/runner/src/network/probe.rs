//! One try at one place. What shows that packets pass: a connection, an answer, or a refusal that the other end itself sent. What
//! shows that they do not: silence, or word from the network that they may not.

use std::{io, net::SocketAddr, os::fd::AsFd, time::Duration};

use agentrun_crds::network_probe::ProbeOutcome;
use rustix::io::Errno;
use tokio::{
    net::{TcpSocket, UdpSocket},
    time::timeout,
};

use super::{
    place::{Place, Protocol},
    tcp_info,
};

/// A question of DNS for the root's name servers.
const QUESTION: [u8; 17] = [0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

/// Try it for so long.
pub async fn try_place(place: &Place, patience: Duration) -> ProbeOutcome {
    let tried = async {
        match place.protocol {
            Protocol::Tcp => tcp(place.address).await,
            Protocol::Udp => udp(place.address).await,
        }
    };
    timeout(patience, tried).await.unwrap_or(ProbeOutcome::Held)
}

async fn tcp(address: SocketAddr) -> ProbeOutcome {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    // Connecting takes the socket away; its twin can still be asked what came in.
    let (socket, twin) = match socket.and_then(|socket| socket.as_fd().try_clone_to_owned().map(|twin| (socket, twin))) {
        Ok(both) => both,
        Err(error) => return of_error(&error),
    };
    match socket.connect(address).await {
        Ok(_) => ProbeOutcome::Reached,
        // The other end refuses by a segment of its own, a fence by a message of the network's.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => match tcp_info::answered(twin.as_fd()) {
            Some(false) => ProbeOutcome::Held,
            _ => ProbeOutcome::Reached,
        },
        Err(error) => of_error(&error),
    }
}

async fn udp(address: SocketAddr) -> ProbeOutcome {
    let any = match address {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let asked = async {
        let socket = UdpSocket::bind(any).await?;
        socket.connect(address).await?;
        socket.send(&QUESTION).await?;
        socket.recv(&mut [0; 512]).await
    };
    match asked.await {
        Ok(_) => ProbeOutcome::Reached,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => ProbeOutcome::Held,
        Err(error) => of_error(&error),
    }
}

fn of_error(error: &io::Error) -> ProbeOutcome {
    let code = Errno::from_io_error(error);
    match code {
        Some(Errno::CONNRESET) => ProbeOutcome::Reached,
        // Forbidden, or there is no way, or nobody has answered.
        Some(Errno::PERM | Errno::ACCESS | Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::HOSTDOWN | Errno::TIMEDOUT) => {
            ProbeOutcome::Held
        }
        // The sandbox has no address of this family.
        Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => ProbeOutcome::Held,
        _ => ProbeOutcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::testing::Listener;
    use agentrun_crds::network_probe::NetworkTarget;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_millis(300);

    fn place(protocol: Protocol, address: SocketAddr) -> Place {
        Place { target: NetworkTarget::Pod, protocol, address }
    }

    #[tokio::test]
    async fn a_listener_is_reached() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let outcome = try_place(&place(Protocol::Tcp, listener.local_addr().unwrap()), PATIENCE).await;
        assert_eq!(outcome, ProbeOutcome::Reached);
    }

    #[tokio::test]
    async fn a_closed_port_is_reached_too_since_its_refusal_came_back() {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        assert_eq!(try_place(&place(Protocol::Tcp, free), PATIENCE).await, ProbeOutcome::Reached);
    }

    #[tokio::test]
    async fn whoever_takes_no_connection_is_out_of_reach_and_waited_for_no_longer_than_said() {
        let full = Listener::of_one();
        let _waits = full.take();
        let begun = Instant::now();
        assert_eq!(try_place(&place(Protocol::Tcp, full.address), PATIENCE).await, ProbeOutcome::Held);
        assert!(begun.elapsed() >= PATIENCE);
    }

    #[tokio::test]
    async fn dns_is_reached_when_it_answers() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let silent = try_place(&place(Protocol::Udp, address), PATIENCE).await;
        let answering = tokio::spawn(async move {
            let mut asked = [0; 64];
            loop {
                let (_, from) = server.recv_from(&mut asked).await.unwrap();
                server.send_to(b"x", from).await.unwrap();
            }
        });
        assert_eq!((silent, try_place(&place(Protocol::Udp, address), PATIENCE).await), (ProbeOutcome::Held, ProbeOutcome::Reached));
        answering.abort();
        let _ = answering.await;
        assert_eq!(try_place(&place(Protocol::Udp, address), PATIENCE).await, ProbeOutcome::Held, "nobody listens");
    }

    #[test]
    fn what_errors_tell() {
        for (code, expected) in [
            (Errno::PERM, ProbeOutcome::Held),
            (Errno::ACCESS, ProbeOutcome::Held),
            (Errno::NETUNREACH, ProbeOutcome::Held),
            (Errno::HOSTUNREACH, ProbeOutcome::Held),
            (Errno::TIMEDOUT, ProbeOutcome::Held),
            (Errno::AFNOSUPPORT, ProbeOutcome::Held),
            (Errno::CONNRESET, ProbeOutcome::Reached),
            (Errno::MFILE, ProbeOutcome::Unknown),
            (Errno::INVAL, ProbeOutcome::Unknown),
        ] {
            assert_eq!(of_error(&code.into()), expected, "{code:?}");
        }
    }
}
