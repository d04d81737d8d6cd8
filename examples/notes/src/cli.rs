//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const TOP_EXAMPLES: &str = "\
Examples:
  notes serve --db ~/.local/share/notes/notes.db
      What an MCP client's configuration starts
  notes status --db ~/.local/share/notes/notes.db
      Which files there are, and which process has the store open
  notes uninstall --db ~/.local/share/notes/notes.db
      List those files, ask, and delete them

Exit codes:
  0  done
  1  failed; for `serve` also: another process has the store open
  2  a mistake on the command line, or a deletion that was refused
  3  nothing to uninstall";

const SERVE_EXAMPLES: &str = "\
The server ends when its stdin ends (what was asked before is still answered), when the process
that started it is gone, when its owner is gone, or on SIGTERM, SIGINT or SIGHUP. The database and
its directory appear with the first note, not before.

Examples:
  notes serve --db notes.db
  notes serve --db notes.db --owner-pid $PPID
      End with that process too, even if something keeps stdin open

Environment:
  NOTES_OWNER_PID      As --owner-pid, which wins over it
  KENNEL_PARENT_WATCH  off, 0, false or no: do not end with the process that started the server
  KENNEL_RUNTIME_DIR   Where locks are kept, for tests and containers";

const UNINSTALL_EXAMPLES: &str = "\
Deletes the database, what SQLite keeps beside it, and the lock files; nothing else, whatever lies
in the same directory. Refuses while any process has the store open: deleting an open database
would corrupt it.

Examples:
  notes uninstall --db notes.db
  notes uninstall --db notes.db --yes
      Do not ask: for scripts";

/// Keep notes for an MCP client, in one SQLite database with one writer
#[derive(Debug, Parser)]
#[command(name = "notes", version, after_help = TOP_EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Speak MCP on stdin and stdout
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Serve),
    /// Show the store's files and who has it open; creates nothing
    Status(Status),
    /// List the store's files, ask, and delete them
    #[command(after_help = UNINSTALL_EXAMPLES)]
    Uninstall(Uninstall),
}

/// Which store, and where older releases of `notes` locked it.
#[derive(Debug, Args)]
pub(crate) struct Store {
    /// Keep the notes in this file; two spellings of one file are one store
    #[arg(long, value_name = "PATH")]
    pub(crate) db: PathBuf,

    /// Also respect the lock of older releases at PATH [default: the database's path + ".lock"]
    #[arg(long, value_name = "PATH")]
    pub(crate) legacy_lock: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) store: Store,

    // Kept as written: what a good owner is, kennel-guard decides, and -1 must reach it.
    /// End when this process is gone
    #[arg(long, value_name = "PID", allow_hyphen_values = true)]
    pub(crate) owner_pid: Option<String>,

    /// Let other `notes serve --coexist` use the store at the same time
    #[arg(long)]
    pub(crate) coexist: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) store: Store,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Uninstall {
    #[command(flatten)]
    pub(crate) store: Store,

    /// Delete without asking
    #[arg(long)]
    pub(crate) yes: bool,
}
