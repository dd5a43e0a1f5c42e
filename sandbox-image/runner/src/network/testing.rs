//! Listeners that take no connection, so that their queues decide who is answered.

use std::{
    net::{SocketAddr, SocketAddrV4, TcpStream},
    os::fd::OwnedFd,
};

use agentrun_crds::network_probe::NetworkTarget;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

use super::{Place, place::Protocol};

pub struct Listener {
    pub address: SocketAddr,
    _socket: OwnedFd,
}

impl Listener {
    /// Answers as many as its queue holds.
    pub fn new(queue: i32) -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &"127.0.0.1:0".parse::<SocketAddrV4>().unwrap()).unwrap();
        listen(&socket, queue).unwrap();
        let address: SocketAddrV4 = getsockname(&socket).unwrap().try_into().unwrap();
        Listener { address: address.into(), _socket: socket }
    }

    /// Answers the first and drops what the others send.
    pub fn of_one() -> Self {
        Listener::new(0)
    }

    /// Take the place of the next.
    pub fn take(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }
}

pub fn place(address: SocketAddr) -> Place {
    Place { target: NetworkTarget::Pod, protocol: Protocol::Tcp, address }
}
