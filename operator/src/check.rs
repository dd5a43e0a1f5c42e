//! `operator check --url http://host:port/path`: asks until the answer is 200, or the time is up. For `helm test` and scripts:
//! our images hold no shell and no other client.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

const PAUSE: Duration = Duration::from_secs(1);
/// For one connection and answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A health answer is a line.
const MOST_BYTES: u64 = 16 * 1024;

/// Ask a health endpoint until it is ready.
#[derive(Parser, Debug)]
#[command(name = "operator check")]
struct Flags {
    /// Plain HTTP: `http://host:port/path`.
    #[arg(long, value_parser = parse)]
    url: Target,
    /// When to give up, such as `60s`.
    #[arg(long, default_value = "60s", value_parser = duration)]
    timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    /// `host:port`.
    authority: String,
    path: String,
}

/// Whether these arguments are for us, and then how it went.
pub fn main(arguments: impl Iterator<Item = String>) -> Option<ExitCode> {
    let arguments: Vec<String> = arguments.collect();
    if arguments.get(1).map(String::as_str) != Some("check") {
        return None;
    }
    let flags = Flags::parse_from(&arguments[1..]);
    let target = flags.url;
    let deadline = Instant::now() + flags.timeout;
    loop {
        match ask(&target) {
            Ok(said) => {
                println!("http://{}{}: {said}", target.authority, target.path);
                return Some(ExitCode::SUCCESS);
            }
            Err(why) if Instant::now() + PAUSE < deadline => eprintln!("http://{}{}: {why}; asking again", target.authority, target.path),
            Err(why) => {
                eprintln!("http://{}{}: {why}; gave up", target.authority, target.path);
                return Some(ExitCode::FAILURE);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

fn parse(url: &str) -> Result<Target, String> {
    let bad = || format!("{url:?} is not of the form http://host:port/path");
    let rest = url.strip_prefix("http://").ok_or_else(bad)?;
    let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let (host, port) = authority.rsplit_once(':').ok_or_else(bad)?;
    if host.is_empty() || port.parse::<u16>().is_err() || !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad());
    }
    Ok(Target { authority: authority.to_owned(), path: path.to_owned() })
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds = agentrun_crds::quantity::seconds(text).map_err(|error| error.to_string())?;
    Ok(Duration::from_secs(seconds.unsigned_abs()))
}

/// One request. The first line of the answer's body if its status is 200.
fn ask(target: &Target) -> Result<String, String> {
    let said = |error: std::io::Error| error.to_string();
    let address = target.authority.to_socket_addrs().map_err(said)?.next().ok_or("the name has no address")?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(said)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(said)?;
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", target.path, target.authority);
    stream.write_all(request.as_bytes()).map_err(said)?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).map_err(said)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.lines().next().unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).lines().next().unwrap_or_default().trim().to_owned();
    match status.split(' ').nth(1) {
        Some("200") => Ok(body),
        Some(code) => Err(format!("answered {code} {body}")),
        None => Err("did not answer in HTTP".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn urls() {
        let target = |authority: &str, path: &str| Ok(Target { authority: authority.into(), path: path.into() });
        assert_eq!(parse("http://agentrun-gateway:8081/readyz"), target("agentrun-gateway:8081", "/readyz"));
        assert_eq!(parse("http://[::1]:80"), target("[::1]:80", "/"));
        for bad in
            ["", "https://a:1/", "http://a/", "http://:1/", "http://a:port/", "http://a:70000/", "http://a:1/x y", "http://a:1/\r\nX: y"]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_200_is_ready() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n", Ok("ok".to_owned())),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\nnot ready: starting\n", Err("answered 503 not ready: starting".to_owned())),
            ("HTTP/1.1 302 Found\r\nlocation: /\r\n\r\n", Err("answered 302 ".to_owned())),
            ("", Err("did not answer in HTTP".to_owned())),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let authority = listener.local_addr().unwrap().to_string();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.push(byte[0]);
                }
                stream.write_all(answer.as_bytes()).unwrap();
                String::from_utf8(request).unwrap()
            });
            assert_eq!(ask(&Target { authority: authority.clone(), path: "/readyz".into() }), expected, "{answer:?}");
            assert_eq!(server.join().unwrap(), format!("GET /readyz HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"));
        }
    }
}
