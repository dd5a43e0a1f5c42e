//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Submit AI agent runs to a cluster, follow them, decide on what they ask, and take their patches.
#[derive(Parser, Debug)]
#[command(name = "kubectl-agentrun", bin_name = "kubectl agentrun", version, propagate_version = true, max_term_width = 100)]
pub struct Arguments {
    #[command(flatten)]
    pub connection: Connection,
    /// Colours: auto uses them on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto, value_name = "WHEN")]
    pub color: ColorChoice,
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, and as whom; as kubectl takes them.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Cluster")]
pub struct Connection {
    /// Kubeconfig to use instead of KUBECONFIG or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Cluster of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// User of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// Namespace; default is that of the context
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Act as this user (needs the right to impersonate)
    #[arg(long = "as", global = true, value_name = "USER")]
    pub act_as: Option<String>,
    /// Act as a member of this group; repeatable
    #[arg(long, global = true, value_name = "GROUP", requires = "act_as")]
    pub as_group: Vec<String>,
    /// Seconds that one request may take until it is answered
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub request_timeout: u64,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorChoice {
    Auto,
    Always,
    Never,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Create a run from a folder or a manifest, and print its name
    Submit(Box<Submit>),
    /// List runs
    #[command(visible_alias = "ls")]
    List(List),
    /// Follow a run to its end; the exit status is the run's
    Watch(Watch),
    /// What a run has said and done so far
    Logs(Logs),
    /// A run's events, one a line
    Events(Events),
    /// What waits for a person: in which run, for how long, the exact command or diff
    Approvals(Approvals),
    /// Allow an action that waits
    Approve(Approve),
    /// Refuse an action that waits; the agent goes on without it
    Deny(Deny),
    /// Ask a run to end
    Cancel(Cancel),
    /// Print a run's patch, for git apply
    Patch(Patch),
    /// Show a run's patch, coloured on a terminal
    Diff(OneRun),
    /// List or fetch what a run has stored
    Artifacts(Artifacts),
    /// How a run ended, whose fault it is, and what to do next
    Why(OneRun),
    /// Submit a run's spec again, as a new run
    Rerun(Rerun),
    /// Wait for a run's end; the exit status is the run's
    Wait(Wait),
    /// What runs have spent of their budgets, and of their namespace's
    Usage(Usage),
    /// Check what a run needs of the cluster and of your rights
    Doctor,
    /// Print a completion script
    Completion {
        /// Which shell
        shell: Shell,
    },
    /// What could come next, as kubectl asks plugins
    #[command(name = "__complete", hide = true, disable_help_flag = true, disable_version_flag = true)]
    Complete {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print the version
    Version,
}

#[derive(Args, Debug)]
pub struct OneRun {
    /// A run's name, @latest (the newest of the namespace) or @mine (the newest that you submitted)
    #[arg(value_name = "RUN")]
    pub run: String,
}

#[derive(Args, Debug)]
pub struct Patch {
    #[command(flatten)]
    pub run: OneRun,
    /// As a mail, for git am: the instruction's first line is the subject
    #[arg(long)]
    pub mailbox: bool,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("from").required(true).multiple(true))]
pub struct Submit {
    /// Folder to send, but for what .gitignore names
    #[arg(long, value_name = "DIR", group = "from", help_heading = "Task")]
    pub dir: Option<PathBuf>,
    /// Git repository to start from, such as https://git.example.com/org/shop.git; the policy must allow it
    #[arg(long, value_name = "URL", group = "from", conflicts_with = "dir", help_heading = "Task")]
    pub git: Option<String>,
    /// With --git: branch, tag or commit; default: the repository's default branch
    #[arg(long = "ref", value_name = "REF", requires = "git", help_heading = "Task")]
    pub reference: Option<String>,
    /// With --git: the folder of the repository that becomes the workspace
    #[arg(long, value_name = "PATH", requires = "git", help_heading = "Task")]
    pub sub_path: Option<String>,
    /// Manifest of an AgentRun, YAML or JSON; - is standard input. Flags change what it says
    #[arg(short = 'f', long = "filename", value_name = "FILE", group = "from", help_heading = "Task")]
    pub file: Option<PathBuf>,
    /// What the agent is to do: a text, @FILE, or - for standard input
    #[arg(short, long, value_name = "TEXT", help_heading = "Task")]
    pub instruction: Option<String>,
    /// A command that must exit with 0 at the end, as words without a shell; NAME='words' names it. Repeatable
    #[arg(long = "check", value_name = "WORDS", help_heading = "Task")]
    pub checks: Vec<String>,
    /// Where files may change: a/b.py, a/** or **. Repeatable; default: everywhere
    #[arg(long = "allowed-path", value_name = "PATH", help_heading = "Task")]
    pub allowed_paths: Vec<String>,
    /// Name of a model that the namespace's policy offers; default: the first
    #[arg(long, value_name = "NAME", help_heading = "Task")]
    pub model: Option<String>,
    /// A command-line agent that the namespace's policy offers; default: the built-in agent
    #[arg(long, value_name = "NAME", help_heading = "Task")]
    pub harness: Option<String>,
    /// Image with the agent's tools
    #[arg(long, value_name = "IMAGE", help_heading = "Task")]
    pub image: Option<String>,
    /// Most steps of the agent
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub max_steps: Option<i64>,
    /// Longest time, such as 180s or 1h30m
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub wall_time: Option<String>,
    /// Most model calls
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub requests: Option<i64>,
    /// Most money, such as 0.50
    #[arg(long, value_name = "AMOUNT", help_heading = "Limits")]
    pub cost: Option<String>,
    /// The run's name
    #[arg(long, value_name = "NAME", conflicts_with = "generate_name")]
    pub name: Option<String>,
    /// Beginning of a name that the API server completes; default: the folder's name
    #[arg(long, value_name = "PREFIX")]
    pub generate_name: Option<String>,
    /// Repeating the command with the same key gives the same run
    #[arg(long, value_name = "KEY", conflicts_with = "generate_name")]
    pub idempotency_key: Option<String>,
    /// The person for whom a service account submits
    #[arg(long, value_name = "USER")]
    pub submitted_for: Option<String>,
    /// Print what would be created: server has the API server judge it, client asks nobody
    #[arg(long, value_enum, value_name = "WHO", num_args = 0..=1, default_missing_value = "server", require_equals = true)]
    pub dry_run: Option<DryRun>,
    /// Follow the run to its end; the exit status is the run's
    #[arg(long)]
    pub follow: bool,
    /// Wait silently for the run's end; the exit status is the run's
    #[arg(long, conflicts_with = "follow")]
    pub wait: bool,
    /// With --follow or --wait: how long, such as 30m; then the exit status is 9 and the run goes on
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<std::time::Duration>,
    /// How to print the created run
    #[arg(short, long, value_enum, value_name = "FORM")]
    pub output: Option<Form>,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum DryRun {
    Server,
    Client,
}

/// How an object is printed.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Json,
    Yaml,
    Name,
}

#[derive(Args, Debug)]
pub struct List {
    /// All namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Go on and print what changes
    #[arg(short, long)]
    pub watch: bool,
    /// Label selector
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    #[arg(short, long, value_enum, value_name = "FORM", conflicts_with = "watch")]
    pub output: Option<Form>,
}

#[derive(Args, Debug)]
pub struct Watch {
    #[command(flatten)]
    pub run: OneRun,
    /// Plain lines also on a terminal
    #[arg(long)]
    pub plain: bool,
    /// How long, such as 30m; then the exit status is 9 and the run goes on
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<std::time::Duration>,
}

#[derive(Args, Debug)]
pub struct Logs {
    #[command(flatten)]
    pub run: OneRun,
    /// Go on to the run's end
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Args, Debug)]
pub struct Events {
    #[command(flatten)]
    pub run: OneRun,
    /// Only those after this number
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    pub after: i64,
    /// Go on to the run's end
    #[arg(short, long)]
    pub follow: bool,
    /// json: one object a line
    #[arg(short, long, value_enum, value_name = "FORM")]
    pub output: Option<JsonOnly>,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonOnly {
    Json,
}

#[derive(Args, Debug)]
pub struct Approvals {
    /// Only of this run, decided ones too
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "run")]
    pub all_namespaces: bool,
    #[arg(short, long, value_enum, value_name = "FORM")]
    pub output: Option<JsonOnly>,
}

#[derive(Args, Debug)]
pub struct Approve {
    #[command(flatten)]
    pub run: OneRun,
    /// Number of the approval
    #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    pub id: i64,
    /// Also allow the very same action whenever this run asks again
    #[arg(long)]
    pub session: bool,
    /// Recorded, and told to the agent
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Decide only if the approval is bound to this digest
    #[arg(long, value_name = "SHA256")]
    pub digest: Option<String>,
}

#[derive(Args, Debug)]
pub struct Deny {
    #[command(flatten)]
    pub run: OneRun,
    /// Number of the approval
    #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    pub id: i64,
    /// Recorded, and told to the agent
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Also end the run
    #[arg(long)]
    pub cancel: bool,
}

#[derive(Args, Debug)]
pub struct Cancel {
    #[command(flatten)]
    pub run: OneRun,
    /// Wait until the run has ended
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args, Debug)]
pub struct Artifacts {
    #[command(flatten)]
    pub run: OneRun,
    /// Fetch this one, by its name or its sha256: digest
    #[arg(long, value_name = "NAME")]
    pub get: Option<String>,
    /// Folder to write into; - is standard output
    #[arg(short = 'O', long, value_name = "DIR", default_value = ".", requires = "get")]
    pub output_dir: PathBuf,
    /// Replace a file that is there
    #[arg(long, requires = "get")]
    pub force: bool,
    #[arg(short, long, value_enum, value_name = "FORM", conflicts_with = "get")]
    pub output: Option<JsonOnly>,
}

#[derive(Args, Debug)]
pub struct Rerun {
    #[command(flatten)]
    pub run: OneRun,
    /// The new run's name; default: the old one's, completed by the API server
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The folder again, where the run's source was uploaded
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Follow the new run to its end; the exit status is the run's
    #[arg(long)]
    pub follow: bool,
}

#[derive(Args, Debug)]
pub struct Wait {
    #[command(flatten)]
    pub run: OneRun,
    /// How long, such as 30m; then the exit status is 9
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<std::time::Duration>,
}

#[derive(Args, Debug)]
pub struct Usage {
    /// Only of this run
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "run")]
    pub all_namespaces: bool,
}

/// `180s`, `30m`, `1h30m`.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    let seconds = agentrun_crds::quantity::seconds(text).map_err(|error| error.to_string())?;
    u64::try_from(seconds).map(std::time::Duration::from_secs).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (line, good) in [
            ("submit --dir . --instruction x", true),
            ("submit -f run.yaml --dry-run", true),
            ("submit -f run.yaml --dry-run=client -o yaml", true),
            ("submit --dir . -n team-a --follow --timeout 30m", true),
            ("submit", false),
            ("submit --dir . --follow --wait", false),
            ("submit --dir . --name a --generate-name b", false),
            ("submit --dir . --timeout 30", false),
            ("approve RUN 3 --session", true),
            ("approve RUN 0", false),
            ("approve RUN x", false),
            ("events RUN -o json --after 17", true),
            ("events RUN --after -1", false),
            ("approvals RUN -A", false),
            ("list -A -w", true),
            ("list -w -o json", false),
            ("artifacts RUN -O x", false),
            ("watch", false),
            ("list --as-group g", false),
        ] {
            let parsed = Arguments::try_parse_from(["kubectl-agentrun"].into_iter().chain(line.split(' ')));
            assert_eq!(parsed.is_ok(), good, "{line}");
        }
    }
}
