//! One fetch from beginning to end: the credential, the commit that the ref means, its pack into a temporary file, and from
//! that the archive.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentrun_crds::agent_run::GitSource;
use agentrun_crds::agent_run_status::ResolvedGit;
use agentrun_crds::git::{self, GitUrl};
use agentrun_crds::paths::RelativePath;
use agentrun_protocol::git_object::ObjectId;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::connection::Remote;
use super::credential;
use super::export::{Exported, Wanted, export};
use super::failure::Failure;
use super::objects::{Objects, ObjectsError};
use super::pack;
use super::server::Server;

/// How much larger than its pack a repository may be: text shrinks to a quarter, and what shrinks more is no source.
const LARGEST_RATIO: u64 = 8;
/// A small pack may be this large all the same.
const ALWAYS_UNPACKED: u64 = 64 << 20;
/// For unpacking, on top of the time for the network.
const UNPACK_TIME: Duration = Duration::from_secs(60);
/// Beside the pack: framing, and what the server says of its progress.
const FRAMING_BYTES: u64 = 1 << 20;

/// Packs that are unpacked at once: each takes a core.
static UNPACKING: Semaphore = Semaphore::const_new(1);

/// What to fetch, and how.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub namespace: String,
    pub source: GitSource,
    pub how: ResolvedGit,
}

/// The verified archive of a commit. Temporary files go into `folder`.
pub(super) async fn fetch(client: &kube::Client, folder: &Path, request: &Request) -> Result<Exported, Failure> {
    let Request { namespace, source, how } = request;
    let invalid = |what: &str| Failure::lasting(format!("spec.source.git.{what} is not what it must be"));
    let url = GitUrl::parse(&source.url).ok_or_else(|| invalid("url"))?;
    let sub_path = source.sub_path.as_deref().map(RelativePath::parse).transpose().map_err(|_| invalid("subPath"))?;
    let credential = credential::read(client, namespace, how.secret.as_deref()).await?;
    let deadline = Instant::now() + Duration::from_secs(how.timeout_seconds.unsigned_abs());
    let remote = Remote { url, addresses: how.addresses, credential, deadline };
    let server = Server::hello(&remote).await?;
    let commit = match ObjectId::parse(&source.reference).filter(|_| git::is_commit(&source.reference)) {
        Some(commit) => commit,
        None => server.resolve(&source.reference).await?,
    };
    let most = how.max_bytes.unsigned_abs();
    let (pack, bytes) = receive(&server, commit, most, folder).await?;
    let permit = UNPACKING.acquire().await.map_err(Failure::internal)?;
    let (folder, symlinks, submodules) = (folder.to_owned(), how.symlinks, how.submodules);
    let most = most.saturating_mul(LARGEST_RATIO).min(bytes.saturating_mul(64)).max(ALWAYS_UNPACKED);
    let unpacked = tokio::task::spawn_blocking(move || {
        // Held until the work ends, also where nobody waits for it any more.
        let _permit = permit;
        let wanted = Wanted { commit, sub_path: sub_path.as_ref(), symlinks, submodules };
        unpack(pack, bytes, most, &wanted, &folder)
    });
    unpacked.await.map_err(Failure::internal)?.map_err(|error| match error {
        ObjectsError::Bad(why) => Failure::lasting(format!("what the git server sent {why}")),
        ObjectsError::TooLong => Failure::lasting("what the git server sent took too long to unpack; name a smaller repository"),
        ObjectsError::Io(error) => Failure::internal(error),
    })
}

async fn receive(server: &Server<'_>, commit: ObjectId, most: u64, folder: &Path) -> Result<(File, u64), Failure> {
    let mut pack = server.fetch(commit, most.saturating_add(FRAMING_BYTES)).await?;
    let mut file = tokio::fs::File::from_std(temporary(folder.to_owned()).await?);
    let mut bytes = 0;
    while let Some(piece) = pack.next().await? {
        bytes += piece.len() as u64;
        file.write_all(&piece).await.map_err(Failure::internal)?;
    }
    file.flush().await.map_err(Failure::internal)?;
    Ok((file.into_std().await, bytes))
}

async fn temporary(folder: PathBuf) -> Result<File, Failure> {
    let created = tokio::task::spawn_blocking(move || tempfile::tempfile_in(folder)).await;
    created.map_err(Failure::internal)?.map_err(Failure::internal)
}

fn unpack(mut file: File, bytes: u64, most: u64, wanted: &Wanted<'_>, folder: &Path) -> Result<Exported, ObjectsError> {
    file.rewind()?;
    let mut objects = Objects::create(folder, most, std::time::Instant::now() + UNPACK_TIME)?;
    pack::read(BufReader::with_capacity(256 * 1024, file), bytes, &mut objects)?;
    export(&mut objects, wanted, folder)
}
