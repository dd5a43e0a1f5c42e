//! File operations over the wire, on trees that are large, deep, hostile, or change meanwhile.

use std::{
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use agentrun_runner::staging::digest;

use crate::sandbox::Sandbox;

const ALL: (u32, u64) = (200_000, 1 << 30);

#[tokio::test]
async fn bytes_survive_the_way_there_and_back() {
    let sandbox = Sandbox::start().await;
    let large: Vec<u8> = (0..9_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for content in [&b""[..], b"a", b"\0\xff\r\n", &large[..256 * 1024], &large[..256 * 1024 + 1], &large] {
        sandbox.executor.write("a/b", content, 755).await.unwrap();
        let (read, done) = sandbox.executor.read("a/b", 64 << 20).await.unwrap();
        assert!(read == content);
        assert_eq!((done.size, done.mode, done.truncated, done.sha256), (content.len() as u64, 755, false, digest(content)));
    }
    let (part, done) = sandbox.executor.read("a/b", 300_000).await.unwrap();
    assert!(part == large[..300_000] && done.truncated && done.size == large.len() as u64 && done.sha256 == digest(&part));
    assert!(sandbox.executor.write("a", b"x", 0).await.unwrap_err().is("is_directory"));
    assert!(sandbox.executor.read("../x", 1).await.unwrap_err().is("escapes"));
    // A refusal while the bytes are still on their way.
    assert!(sandbox.executor.write("a", &large, 0).await.unwrap_err().is("is_directory"));
    assert_eq!(std::fs::read_dir(sandbox.root().join("a")).unwrap().count(), 1);
}

#[tokio::test]
async fn a_manifest_names_what_cannot_be_in_a_patch() {
    let sandbox = Sandbox::start().await;
    let root = sandbox.root();
    let put = |path: &str, content: &str| {
        std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        std::fs::write(root.join(path), content).unwrap();
    };
    put("plain", "1");
    put("dir/script", "2");
    put("dir/new\nline \u{202e}txt", "3");
    put(".git/config", "top");
    put("dir/.GIT/config", "nested");
    put("dir/__pycache__/x.pyc", "cache");
    put("empty/__pycache__/x.pyc", "cache");
    std::fs::set_permissions(root.join("dir/script"), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::hard_link(root.join("plain"), root.join("second")).unwrap();
    symlink("/etc/passwd", root.join("link")).unwrap();
    symlink("/etc", root.join("dir/etc")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
    std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    std::fs::write(root.join(std::ffi::OsStr::from_bytes(b"not\xffutf8")), "").unwrap();

    let exclude = vec![".git".to_owned(), "**/__pycache__".to_owned()];
    let manifest = sandbox.executor.manifest(ALL.0, ALL.1, exclude).await.unwrap();
    let seen: Vec<_> = manifest.entries.values().map(|entry| (entry.path.as_str(), entry.mode, entry.size)).collect();
    assert_eq!(seen, [("dir/new\nline \u{202e}txt", 644, 1), ("dir/script", 755, 1), ("plain", 644, 1), ("second", 644, 1)]);
    assert_eq!(manifest.entries["plain"].sha256, digest(b"1"));
    let mut refused: Vec<&str> = manifest.refused.iter().map(|entry| entry.path.as_str()).collect();
    refused.sort_unstable();
    assert_eq!(refused, ["dir/.GIT", "dir/etc", "fifo", "link", "not\u{fffd}utf8", "socket"]);
    assert!(!manifest.truncated);

    for (entries, bytes, truncated) in [(3, ALL.1, true), (ALL.0, 2, true), (ALL.0, 1 << 20, false)] {
        let manifest = sandbox.executor.manifest(entries, bytes, vec![]).await.unwrap();
        assert_eq!(manifest.truncated, truncated, "{entries} {bytes}");
        assert_eq!(manifest.refused.iter().any(|entry| entry.why.contains("2 bytes")), bytes == 2, "the file that is too much is named");
    }
    for list in ["", "dir"] {
        assert!(!sandbox.executor.list(list, 0).await.unwrap().entries.is_empty());
    }
    assert_eq!(sandbox.executor.search("", "3", 0).await.unwrap().matches.len(), 1);
}

#[tokio::test]
async fn deep_and_wide_trees_are_walked_in_bounded_memory() {
    let sandbox = Sandbox::start().await;
    let root = sandbox.root();
    // 20,000 files, and a chain of 3,000 directories made by stepping into each, as no path could name it.
    for directory in 0..20 {
        let directory = root.join(format!("wide{directory}"));
        std::fs::create_dir(&directory).unwrap();
        for file in 0..1000 {
            std::fs::write(directory.join(format!("a-file-with-quite-a-long-name-{file}")), "x").unwrap();
        }
    }
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let mut deep = rustix::fs::open(&root, flags, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..3000 {
        rustix::fs::mkdirat(&deep, "d", rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        deep = rustix::fs::openat(&deep, "d", flags, rustix::fs::Mode::empty()).unwrap();
    }
    let manifest = sandbox.executor.manifest(ALL.0, ALL.1, vec![]).await.unwrap();
    assert_eq!(manifest.entries.len(), 20_000);
    assert!(manifest.refused.len() == 1 && manifest.refused[0].why.contains("too long"), "{:?}", manifest.refused);
    assert!(sandbox.executor.manifest(10_000, ALL.1, vec![]).await.unwrap().truncated);
    assert!(sandbox.executor.search("", "y", 0).await.unwrap().matches.is_empty());
    let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.process.id().unwrap())).unwrap();
    let peak: u64 = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 64 * 1024, "{peak} kB");
    // std's removal goes by path and cannot; step out again.
    assert_eq!(sandbox.sh("rm -rf d", 600_000).await.unwrap().0.exit_code, 0);
}

#[tokio::test]
async fn a_tree_that_changes_meanwhile_breaks_nothing() {
    let sandbox = Sandbox::start().await;
    let root = sandbox.root();
    std::fs::create_dir(root.join("steady")).unwrap();
    for file in 0..50 {
        std::fs::write(root.join(format!("steady/{file}")), "x").unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let vandal = std::thread::spawn({
        let (root, stop) = (root.clone(), stop.clone());
        move || {
            let mut rounds = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let (one, two) = (root.join("one"), root.join("two"));
                let _ = std::fs::create_dir_all(one.join("x/y"));
                let _ = std::fs::write(one.join("x/y/f"), "z".repeat(10_000));
                let _ = std::fs::rename(&one, &two);
                let _ = symlink("/etc", &one);
                let _ = std::fs::remove_file(&one);
                let _ = std::fs::remove_dir_all(&two);
                rounds += 1;
            }
            rounds
        }
    });
    for _ in 0..100 {
        let manifest = sandbox.executor.manifest(ALL.0, ALL.1, vec![]).await.unwrap();
        assert_eq!(manifest.entries.keys().filter(|path| path.starts_with("steady/")).count(), 50);
        assert!(manifest.entries.keys().all(|path| ["steady/", "one/x/y/f", "two/x/y/f"].iter().any(|known| path.starts_with(known))));
        assert!(sandbox.executor.search("", "root:", 0).await.unwrap().matches.is_empty());
    }
    stop.store(true, Ordering::Relaxed);
    assert!(vandal.join().unwrap() > 100);
}

#[tokio::test]
async fn a_file_that_grows_for_ever_is_cut() {
    let sandbox = Sandbox::start().await;
    let path = sandbox.root().join("log");
    std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let stop = stop.clone();
        move || {
            use std::io::Write;
            let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
            let mut written = 0;
            // Bounded, should the test fail.
            while !stop.load(Ordering::Relaxed) && written < (512 << 20) {
                written += file.write(&[b'y'; 64 * 1024]).unwrap();
            }
        }
    });
    let (content, done) = sandbox.executor.read("log", 3 << 20).await.unwrap();
    assert!(content.len() <= 3 << 20 && done.sha256 == digest(&content));
    let manifest = sandbox.executor.manifest(ALL.0, 4 << 20, vec![]).await.unwrap();
    assert!(manifest.truncated || manifest.entries["log"].size <= 4 << 20);
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}
