//! A secret in the environment of all programs that tests start, and the search for it: Kennel passes it to servers, and
//! must not write it to any file.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The variable with the secret, named like other secrets. Kennel treats it like any variable.
pub const CANARY: &str = "SECRET_CANARY_TOKEN";

/// Maximum size of a searched file. No file of Kennel's is larger.
const LONGEST: u64 = 64 << 20;

/// Where the canary was found during tests.
static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A random value that appears only where a program wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary(String);

impl Canary {
    /// A new value.
    pub fn fresh() -> Canary {
        let random = || RandomState::new().hash_one(std::process::id());
        Canary(format!("{:016x}{:016x}", random(), random()))
    }

    /// The value of this run: of all tests under `cargo xtask test`, else of this test.
    pub fn of_run() -> &'static Canary {
        static OF_RUN: OnceLock<Canary> = OnceLock::new();
        OF_RUN.get_or_init(|| std::env::var(CANARY).map_or_else(|_| Canary::fresh(), Canary))
    }

    /// The value. Do not print it.
    pub fn value(&self) -> &str {
        &self.0
    }

    /// Whether the value is in `content`.
    pub fn is_in(&self, content: &[u8]) -> bool {
        String::from_utf8_lossy(content).contains(&self.0)
    }

    /// The files below `path` (and `path` itself) that contain the value in their name, content or link target.
    pub fn below(&self, path: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        self.search(path, &mut found);
        found
    }

    fn search(&self, path: &Path, found: &mut Vec<PathBuf>) {
        // Files that are gone or unreadable are skipped: a file of Kennel's is readable for its user.
        let Ok(meta) = path.symlink_metadata() else {
            return;
        };
        let name = path.file_name().unwrap_or_default();
        let content = if meta.is_symlink() {
            fs::read_link(path).map(|target| target.into_os_string().into_encoded_bytes())
        } else if meta.is_file() {
            text_of(path)
        } else {
            Ok(Vec::new())
        };
        if self.is_in(name.as_encoded_bytes()) || self.is_in(&content.unwrap_or_default()) {
            found.push(path.to_owned());
        }
        if meta.is_dir() {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                self.search(&entry.path(), found);
            }
        }
    }

    /// The processes with the value among their arguments, which every user can read.
    pub fn among_arguments(&self) -> Vec<String> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let has_it = |pid: &u32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            self.is_in(&arguments)
        };
        let told = |pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("the arguments of process {pid}, {}", name.trim())
        };
        pids.filter(has_it).map(told).collect()
    }

    /// Records, for [`seen`], the processes with the value among their arguments now.
    pub(crate) fn look_at_arguments(&self) {
        for place in self.among_arguments() {
            remember(place);
        }
    }

    /// Records, for [`seen`], the files with the value now: they may be gone before the test ends.
    pub(crate) fn look_below<'a>(&self, places: impl Iterator<Item = &'a PathBuf>) {
        for path in places.flat_map(|place| self.below(place)) {
            remember(path.display().to_string());
        }
    }

    /// Records, for [`seen`], that this line of `source` has the value. A line of MCP may contain it.
    pub(crate) fn hear(&self, source: &str, line: &str) {
        if line.contains(&self.0) && !line.contains("\"jsonrpc\"") {
            remember(source.to_owned());
        }
    }
}

/// Where the canary was found during this test.
pub(crate) fn seen() -> Vec<String> {
    std::mem::take(&mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn remember(place: String) {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !seen.contains(&place) {
        seen.push(place);
    }
}

/// The content of a file, unless it is a program: tests copy many of those.
fn text_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?.take(LONGEST);
    let mut content = Vec::new();
    (&mut file).take(4).read_to_end(&mut content)?;
    if content != b"\x7fELF" {
        file.read_to_end(&mut content)?;
    }
    Ok(content)
}
