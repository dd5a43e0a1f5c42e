//! What the kernel counted on a TCP socket. No crate of ours wraps this option, so the call is made by hand, here alone.

use std::{
    mem::{MaybeUninit, size_of},
    os::fd::{AsRawFd, BorrowedFd},
};

/// Whether a segment of the other end has come in. `None`: the kernel does not count them, as gVisor's does not.
pub fn answered(socket: BorrowedFd<'_>) -> Option<bool> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    #[expect(unsafe_code, reason = "getsockopt writes at most `length` bytes into `info`, which lives as long as the call")]
    let code =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut length) };
    #[expect(unsafe_code, reason = "it is made of integers, for which zeros are a value, and was zeroed")]
    let info = unsafe { info.assume_init() };
    // Our own segment is counted wherever any is.
    (code == 0 && info.tcpi_segs_out > 0).then_some(info.tcpi_segs_in > 0)
}
