//! The live view on a real pseudo-terminal, read by a terminal emulator.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::fake::{Answer, Fake, Piece, ended, event, run};

/// What the screen showed after each piece of output, and the status.
async fn screens(fake: &Fake, line: &str, environment: &[(&str, &str)]) -> (Vec<String>, String, i32) {
    let mut command = Command::new("script");
    fake.prepare(&mut command);
    command.env("TERM", "xterm").envs(environment.iter().copied());
    let mut child = command
        .args(["--quiet", "--flush", "--return", "--command"])
        .arg(format!("stty cols 80 rows 24; exec {} {line}", env!("CARGO_BIN_EXE_kubectl-agentrun")))
        .arg("/dev/null")
        .spawn()
        .expect("script (util-linux) is there");
    let mut terminal = vt100::Parser::new(24, 80, 1_000);
    let mut stdout = child.stdout.take().expect("a pipe");
    let (mut seen, mut raw) = (Vec::new(), Vec::new());
    let read = async {
        let mut bytes = [0; 4096];
        loop {
            match stdout.read(&mut bytes).await.expect("readable") {
                0 => break,
                count => {
                    terminal.process(&bytes[..count]);
                    raw.extend_from_slice(&bytes[..count]);
                    seen.push(terminal.screen().contents());
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read).await.expect("it ends");
    let status = child.wait().await.expect("it ran").code().expect("a status");
    (seen, String::from_utf8_lossy(&raw).into_owned(), status)
}

async fn scripted() -> Fake {
    Fake::new(|asked, _| {
        if asked.path.starts_with("/apis/agentrun.dev") {
            return Answer::json(200, &run("r", ended("Failed", "ChecksFailed")));
        }
        let bytes = |text: String| Piece::Bytes(text.into());
        // Longer than the clock's tick, so that the lines beneath are drawn again in between.
        let pause = || Piece::Pause(Duration::from_millis(1_100));
        Answer::pieces(vec![
            bytes(event(1, "phase", &json!({ "phase": "Running" }))),
            pause(),
            bytes(event(2, "message", &json!({ "text": "I \u{1b}[2J\u{1b}[31mclear\nyour screen" }))),
            bytes(event(3, "approval", &json!({ "id": 3, "state": "pending", "kind": "run_command", "summary": "rm -rf build" }))),
            pause(),
            bytes(event(4, "approval", &json!({ "id": 3, "state": "allowed", "kind": "run_command", "summary": "rm -rf build" }))),
            bytes(event(5, "step", &json!({ "step": 2, "maxSteps": 12 }))),
            pause(),
            bytes(event(6, "end", &json!({ "phase": "Failed", "reason": "ChecksFailed" }))),
        ])
    })
    .await
}

#[tokio::test]
async fn the_lines_beneath_are_drawn_again_and_leave_nothing_behind() {
    let fake = scripted().await;
    let (seen, raw, status) = screens(&fake, "watch r", &[]).await;
    assert_eq!(status, 4);
    assert!(seen.iter().any(|screen| screen.contains("! 3 waits: run_command rm -rf build\n  kubectl agentrun approve r 3")), "{seen:#?}");
    assert!(seen.iter().any(|screen| screen.contains("r  Running  step 2/12")), "{seen:#?}");
    let last: Vec<&str> = seen.last().expect("a screen").lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let expected = [
        "00:00:00 phase    Running",
        "00:00:00 says",
        "         │ I \\u{1b}[2J\\u{1b}[31mclear",
        "         │ your screen",
        "00:00:00 approval 3 pending: run_command rm -rf build",
        "         │ kubectl agentrun approve r 3, or deny r 3",
        "00:00:00 approval 3 allowed: run_command rm -rf build",
        "00:00:00 step     2 of 12",
        "00:00:00 end      Failed ChecksFailed",
        "r: Failed, ChecksFailed: it ended with ChecksFailed",
        "More: kubectl agentrun why r",
    ];
    assert_eq!(last, expected);
    assert!(raw.contains("\u{1b}[36m"), "colours are used on a terminal");
}

#[tokio::test]
async fn colours_can_be_done_without() {
    let fake = scripted().await;
    for (line, environment) in
        [("watch r", &[("NO_COLOR", "1")][..]), ("watch r --color never", &[]), ("watch r --plain", &[("NO_COLOR", "1")])]
    {
        let (_, raw, _) = screens(&fake, line, environment).await;
        // Of the sequences that set colours, the last letter is an m.
        let colours =
            raw.split("\u{1b}[").skip(1).any(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'));
        assert!(!colours, "{line}: {raw:?}");
        assert_eq!(raw.contains("\u{1b}[J"), !line.contains("plain"), "{line}: {raw:?}");
    }
    let (_, raw, _) = screens(&fake, "watch r", &[("TERM", "dumb")]).await;
    assert!(!raw.contains('\u{1b}'), "{raw:?}");
}
