//! Commands: exit codes, output, environment, and above all that nothing they start outlives them.

use std::time::{Duration, Instant};

use agentrun_protocol::executor::{ExecStart, method};
use agentrun_runner::{
    connection::{Frame, listen},
    executor::Executor,
};
use prost::Message;
use tokio::time::timeout;

use crate::sandbox::{Captured, PATIENCE, Place, Sandbox, command, ended, eventually, mark, marked, spawn_executor};

#[tokio::test]
async fn exit_codes_are_what_a_shell_would_say() {
    let sandbox = Sandbox::start().await;
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        let (exit, _) = sandbox.sh(script, 20_000).await.unwrap();
        assert_eq!((exit.exit_code, exit.timed_out), (code, false), "{script}");
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let sandbox = Sandbox::start().await;
    std::fs::write(sandbox.root().join("data"), "not a program").unwrap();
    std::os::unix::fs::symlink("/tmp", sandbox.root().join("link")).unwrap();
    for (argv, cwd, code) in [
        (&["no-such-program-here"][..], "", "not_started"),
        (&["./data"], "", "not_started"),
        (&["/"], "", "not_started"),
        (&[], "", "invalid"),
        (&["true"], "missing", "not_found"),
        (&["true"], "..", "escapes"),
        (&["true"], "/tmp", "escapes"),
        (&["true"], "link", "escapes"),
        (&["true"], "data", "not_regular"),
    ] {
        let start = ExecStart { cwd: cwd.into(), ..command(argv, 20_000) };
        let error = sandbox.executor.exec(start, &mut Captured::default()).await.unwrap_err();
        assert!(error.is(code), "{argv:?} in {cwd:?}: {error:?}");
    }
}

#[tokio::test]
async fn commands_see_the_workspace_and_a_clean_environment() {
    let sandbox = Sandbox::start().await;
    std::fs::create_dir(sandbox.root().join("sub")).unwrap();
    let start = ExecStart {
        cwd: "sub".into(),
        env: [("EXTRA".to_owned(), "1".to_owned())].into(),
        ..command(&["sh", "-c", "pwd; env; echo bad >&2; cat; echo; ls /proc/self/fd"], 20_000)
    };
    let mut output = Captured::default();
    let exit = sandbox.executor.exec(start, &mut output).await.unwrap();
    assert_eq!(exit.exit_code, 0);
    let text = output.stdout();
    let mut lines = text.lines();
    assert_eq!(lines.next().unwrap(), sandbox.root().canonicalize().unwrap().join("sub").to_str().unwrap());
    // What a child of this very process gets is what the surroundings leak, and nothing of ours comes on top.
    let direct = std::process::Command::new("ls").arg("/proc/self/fd").stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(text.rsplit_once("\n\n").unwrap().1, String::from_utf8_lossy(&direct.stdout));
    let known = [
        "EXTRA",
        "GIT_CONFIG_COUNT",
        "GIT_CONFIG_KEY_0",
        "GIT_CONFIG_VALUE_0",
        "GIT_TERMINAL_PROMPT",
        "HOME",
        "LANG",
        "OLDPWD",
        "PATH",
        "PWD",
        "PYTHONDONTWRITEBYTECODE",
        "SHLVL",
        "TMPDIR",
        "_",
    ];
    let toolchain = ["CARGO_HOME", "RUSTUP_HOME", "GOPATH", "GOROOT", "JAVA_HOME", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "NODE_PATH"];
    for name in lines.filter_map(|line| line.split_once('=')).map(|(name, _)| name) {
        assert!(known.contains(&name) || toolchain.contains(&name), "{name}");
    }
    assert_eq!(output.stderr, b"bad\n");
}

/// Scripts that try to leave a process `sleep M` behind, and their exit codes.
const ESCAPES: &[(&str, i32)] = &[
    // In the background, holding the pipes.
    ("sleep M & exit 3", 3),
    ("setsid sleep M & exit 0", 0),
    ("nohup sleep M >/dev/null 2>&1 & exit 0", 0),
    // Forked twice, each time a new session.
    ("(setsid sh -c '(setsid sleep M &) ; sleep M' >/dev/null 2>&1 &); sleep 0.2; exit 0", 0),
    // Deaf.
    ("setsid sh -c 'trap \"\" TERM HUP INT QUIT; sleep M; sleep M' & sleep 0.2; exit 0", 0),
    // Stopped.
    ("sh -c 'kill -STOP $$; sleep M' & sleep 0.2; exit 0", 0),
    // The subreaper is killed, and what it held reaches the executor.
    ("setsid sleep M & kill -9 $PPID; sleep M", 137),
    ("(setsid sh -c 'setsid sleep M & sleep M' &); sleep 0.2; kill -9 $PPID; exit 0", 137),
    // The subreaper is stopped.
    ("setsid sleep M & kill -STOP $PPID; exit 5", 5),
    // Many, and more while they are being killed.
    (
        "b() { i=0; while [ $i -lt 150 ]; do setsid sleep M & i=$((i+1)); done; }; b & b & (setsid sh -c 'while :; do setsid sleep M & sleep 0.01; done' &) ; sleep 0.3; exit 0",
        0,
    ),
];

#[tokio::test]
async fn nothing_outlives_its_command() {
    let sandbox = Sandbox::start().await;
    let pid = sandbox.process.id().unwrap();
    nothing_is_left(&sandbox, pid).await;
}

#[tokio::test]
async fn nothing_outlives_its_command_where_the_executor_is_process_1() {
    let Some(sandbox) = Sandbox::start_as_init().await else { return };
    let unshare = sandbox.process.id().unwrap();
    let init = children(unshare).trim().parse().unwrap();
    nothing_is_left(&sandbox, init).await;
}

async fn nothing_is_left(sandbox: &Sandbox, executor: u32) {
    for (script, code) in ESCAPES {
        let mark = mark();
        let (exit, _) = sandbox.sh(&script.replace('M', &mark), 60_000).await.unwrap();
        assert_eq!(exit.exit_code, *code, "{script}");
        assert_eq!(marked(&mark), [""; 0], "{script}");
        assert!(exit.duration_ms < 30_000, "{script}: {} ms", exit.duration_ms);
    }
    // No zombies either.
    eventually("an executor without children", || children(executor).trim().is_empty()).await;
}

fn children(of: u32) -> String {
    std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap()
}

#[tokio::test]
async fn a_command_that_kills_its_keeper_leaves_other_commands_alone() {
    let sandbox = Sandbox::start().await;
    let (slow, fast) = tokio::join!(sandbox.sh("sleep 1; exit 9", 20_000), sandbox.sh("kill -9 $PPID; sleep 30", 20_000));
    assert_eq!((slow.unwrap().0.exit_code, fast.unwrap().0.exit_code), (9, 137));
}

#[tokio::test]
async fn time_limits_end_commands_with_all_they_started() {
    let sandbox = Sandbox::start().await;
    let mark = mark();
    let began = Instant::now();
    let (exit, output) = sandbox.sh(&format!("echo begun; setsid sleep {mark} & sleep {mark}"), 700).await.unwrap();
    assert_eq!((exit.exit_code, exit.timed_out, output.stdout()), (137, true, "begun\n".to_owned()));
    assert!(began.elapsed() >= Duration::from_millis(700) && began.elapsed() < PATIENCE);
    assert_eq!(marked(&mark), [""; 0]);
}

#[tokio::test]
async fn a_flood_is_bounded_and_counted() {
    let sandbox = Sandbox::start().await;
    let start = ExecStart { max_output_bytes: 300_000, ..command(&["sh", "-c", "yes out & yes err >&2"], 1_000) };
    let mut output = Captured::default();
    let exit = sandbox.executor.exec(start, &mut output).await.unwrap();
    assert_eq!(output.stdout.len() + output.stderr.len(), 300_000);
    assert!(exit.timed_out && exit.dropped_bytes > 1_000_000, "{exit:?}");
    assert!(output.stdout.iter().all(|byte| b"out\n".contains(byte)) && output.stderr.iter().all(|byte| b"er\n".contains(byte)));
}

#[tokio::test]
async fn output_is_whole_when_it_is_within_bounds() {
    let sandbox = Sandbox::start().await;
    let start = ExecStart { max_output_bytes: 64 << 20, ..command(&["sh", "-c", "seq 1 1500000"], 60_000) };
    let mut output = Captured::default();
    let exit = sandbox.executor.exec(start, &mut output).await.unwrap();
    assert_eq!((exit.exit_code, exit.dropped_bytes), (0, 0));
    let expected: String = (1..=1_500_000).map(|n| format!("{n}\n")).collect();
    assert!(output.stdout == expected.as_bytes(), "{} of {} bytes", output.stdout.len(), expected.len());
}

#[tokio::test]
async fn a_reader_that_does_not_read_blocks_nobody_else() {
    let place = Place::new();
    let listening = listen(&place.socket()).unwrap();
    let mut process = spawn_executor(&place.socket(), &place.root());
    let (connection, _) = listening.accept(PATIENCE).await.unwrap();
    let flood = ExecStart { max_output_bytes: 1 << 30, ..command(&["yes"], 60_000) };
    let mut floods: Vec<_> = (0..4).map(|_| connection.call(method::EXEC_START, flood.encode_to_vec())).collect();
    assert!(matches!(floods[0].next().await, Some(Frame::Chunk(_))));
    let executor = Executor::new(connection);
    for round in 0..50 {
        executor.write(&format!("f{round}"), &vec![7; 300_000], 0).await.unwrap();
    }
    let resident = std::fs::read_to_string(format!("/proc/{}/status", process.id().unwrap())).unwrap();
    let kilobytes: u64 =
        resident.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 128 * 1024, "{kilobytes} kB");
    drop(floods);
    executor.close();
    assert_eq!(ended(&mut process).await, Some(1));
}

#[tokio::test]
async fn dropping_a_call_cancels_its_command() {
    let sandbox = Sandbox::start().await;
    let mark = mark();
    let script = format!("setsid sleep {mark} & sleep {mark}");
    let running = sandbox.sh(&script, 120_000);
    let started = eventually("the command's start", || marked(&mark).iter().filter(|line| line.starts_with("sleep")).count() == 2);
    tokio::select! {
        outcome = running => panic!("{:?}", outcome.map(|(exit, _)| exit)),
        () = started => {}
    }
    eventually("the command's end", || marked(&mark).is_empty()).await;
    assert_eq!(sandbox.sh("exit 4", 20_000).await.unwrap().0.exit_code, 4);
}

#[tokio::test]
async fn losing_the_runner_ends_everything() {
    let mut sandbox = Sandbox::start().await;
    let mark = mark();
    let running = sandbox.executor.clone();
    let script = format!("setsid sleep {mark} & sleep {mark}");
    let running = tokio::spawn(async move { running.exec(command(&["sh", "-c", &script], 120_000), &mut Captured::default()).await });
    eventually("the command's start", || marked(&mark).iter().filter(|line| line.starts_with("sleep")).count() == 2).await;
    sandbox.executor.close();
    assert!(running.await.unwrap().is_err());
    assert_eq!(ended(&mut sandbox.process).await, Some(1));
    assert_eq!(marked(&mark), [""; 0]);
}

#[tokio::test]
async fn sigterm_ends_it_well_before_and_after_the_connection() {
    let term = |process: &tokio::process::Child| {
        let pid = rustix::process::Pid::from_raw(process.id().unwrap().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    };
    let mut sandbox = Sandbox::start().await;
    term(&sandbox.process);
    assert_eq!(ended(&mut sandbox.process).await, Some(0));

    let place = Place::new();
    let mut waiting = spawn_executor(&place.socket(), &place.root());
    // It handles the signal once it waits for the socket, which shows as a caught signal.
    eventually("the handler", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", waiting.id().unwrap())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(caught, 16).unwrap() & (1 << 14) != 0
    })
    .await;
    term(&waiting);
    assert_eq!(ended(&mut waiting).await, Some(0));
}

#[tokio::test]
async fn a_second_connection_finds_nobody() {
    let sandbox = Sandbox::start().await;
    assert!(tokio::net::UnixStream::connect(sandbox.place.socket()).await.is_err());
    let mut second = spawn_executor(&sandbox.place.socket(), &sandbox.root());
    assert!(timeout(Duration::from_millis(500), second.wait()).await.is_err(), "it waits, and is not served");
    second.kill().await.unwrap();
    assert_eq!(sandbox.sh("exit 2", 20_000).await.unwrap().0.exit_code, 2);
}

#[tokio::test]
async fn an_unknown_method_is_refused_by_name() {
    let place = Place::new();
    let listening = listen(&place.socket()).unwrap();
    let _process = spawn_executor(&place.socket(), &place.root());
    let (connection, _) = listening.accept(PATIENCE).await.unwrap();
    for (method, payload, code) in [("fs.Format", vec![], "unknown_method"), (method::FS_READ, vec![0xff, 0xff], "invalid")] {
        match connection.call(method, payload).next().await {
            Some(Frame::Failed(error)) => assert_eq!(error.code, code, "{}", error.message),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(connection.call(method::PING, vec![]).next().await, Some(Frame::Done(_))));
}
