//! Checks of files that people write: `servers.toml`, and the configurations of their apps.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

use super::Finding;
use crate::known_variables::{self, Unknown};
use crate::search_path;
use crate::sharing::ServersToml;
use crate::sharing::launcher::{self, Launched};
use crate::wrap::ConfigStatus;
use crate::wrap::mask;
use crate::wrap::places::{Bases, FoundConfig};
use crate::wrap::splice;

/// Variables whose names begin with `KENNEL_` and that have no effect.
pub(super) fn environment() -> Result<Vec<Finding>, String> {
    let finding = |Unknown { name, suggestion }| {
        let fix = match suggestion {
            Some(meant) => {
                format!("if you meant {meant}, set that instead; otherwise unset {name}")
            }
            None => format!("unset {name}"),
        };
        let what = format!("{name} is set, and kennel has no such variable");
        Finding::new(what, "it has no effect", fix)
    };
    let unknown = known_variables::unknown();
    Ok(unknown.into_iter().map(finding).collect())
}

pub(super) fn servers_toml() -> Result<Vec<Finding>, String> {
    let finding = |warning: String| Finding::new(warning, "it has no effect", "fix that line");
    let (_, warnings) = ServersToml::load_quietly();
    Ok(warnings.into_iter().map(finding).collect())
}

/// A configuration with its servers, or why it cannot be read.
struct Configuration {
    found: FoundConfig,
    servers: Result<ConfigStatus, String>,
}

/// All configurations that exist, without their disabled servers.
fn configurations() -> Result<Vec<Configuration>, String> {
    let bases = Bases::of_user().ok_or("HOME is not set to an absolute path")?;
    let read = |found: FoundConfig| {
        let mut servers = crate::wrap::config_status(&found, &bases.home);
        if let Ok(status) = &mut servers {
            status.entries.retain(|entry| !entry.is_disabled);
        }
        Configuration { found, servers }
    };
    Ok(bases.find(&[]).into_iter().map(read).collect())
}

/// Why it is a problem that an app starts a server without Kennel.
const DIRECT: &str = "a server for every session, and orphans when the app is killed";

/// Configurations that start servers without Kennel, or that cannot be read.
pub(super) fn apps() -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    let (mut direct, mut gone) = (Vec::new(), Vec::new());
    for Configuration { found, servers } in configurations()? {
        let path = found.path.display();
        let title = found.client.map_or("", |client| client.title);
        let servers = match servers {
            Ok(servers) => servers,
            Err(error) => {
                let what = format!("{title}: {path}: {error}");
                let why = "the app may not read it either";
                findings.push(Finding::new(what, why, "fix that line"));
                continue;
            }
        };
        let mut names = Vec::new();
        for entry in &servers.entries {
            let Some(command) = entry.command() else {
                continue;
            };
            // A server that `wrap` skips is no problem as far as Kennel can tell.
            if !servers.to_wrap.contains(&entry.name) {
                continue;
            }
            match splice::kennel_prefix(&command) {
                None => names.push(entry.name.as_str()),
                Some(_) => gone.push(format!(
                    "{title}: {} starts {}, which is missing ({path})",
                    entry.name, command[0]
                )),
            }
        }
        if names.is_empty() {
            continue;
        }
        let what = format!("{title} starts {} directly ({path})", names.join(", "));
        match servers.obstacle {
            None => direct.push(what),
            Some(obstacle) => {
                let fix = format!("{obstacle}; then `kennel wrap`");
                findings.push(Finding::new(what, DIRECT, fix));
            }
        }
    }
    // One command for all of them: `wrap` shows each file and asks.
    if !direct.is_empty() {
        findings.push(Finding::new(direct.join("; "), DIRECT, "kennel wrap"));
    }
    if !gone.is_empty() {
        let why = "the app cannot start this server";
        findings.push(Finding::new(gone.join("; "), why, "kennel wrap"));
    }
    Ok(findings)
}

/// Servers whose program is missing: one finding for each program.
pub(super) fn commands() -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    let mut lacking: BTreeMap<String, (Vec<String>, BTreeSet<String>)> = BTreeMap::new();
    for Configuration { found, servers } in configurations()? {
        let path = found.path.display();
        // Another check reports unreadable configurations.
        let Ok(servers) = servers else {
            let why = format!("the servers of {path} are not known");
            findings.push(super::not_checked(&why));
            continue;
        };
        for entry in &servers.entries {
            let Some(command) = entry.command() else {
                continue;
            };
            let behind = splice::kennel_prefix(&command);
            let own = behind.map_or(0, |behind| behind.server);
            let (kennel, server) = command.split_at(own);
            for missing in missing(kennel, server, entry.has_cwd) {
                // A whole command line in the place of the program may contain a credential.
                let words: Vec<String> = missing.split_whitespace().map(Into::into).collect();
                let missing = mask::shown(&words).join(" ");
                let (servers, files) = lacking.entry(missing).or_default();
                servers.push(entry.name.clone());
                files.insert(path.to_string());
            }
        }
    }
    findings.extend(lacking.into_iter().map(|(missing, (servers, files))| {
        let files = files.into_iter().collect::<Vec<_>>().join(", ");
        let servers = servers.join(", ");
        Finding::new(
            format!("{servers}: {missing} is not found ({files})"),
            "the app cannot start this server",
            format!("install {missing}, or remove the server from the file"),
        )
    }));
    Ok(findings)
}

/// A missing requirement of a command: its program, the script for its interpreter, or the directory in which Kennel
/// starts it. Also returns the word that names it.
fn missing<'c>(kennel: &'c [String], server: &'c [String], has_cwd: bool) -> Vec<&'c str> {
    // Words that the app expands, or looks for elsewhere, cannot be checked here.
    let status = |word: &&str| !word.contains(['$', '{', '~']);
    let absolute = |word: &&str| word.starts_with('/');
    let program = server.first().map(String::as_str);
    let program = program.filter(|word| !has_cwd || absolute(word));
    let program = program.filter(status).filter(|word| !is_there(word));
    let is_script = |word: &&str| match launcher::launched(server) {
        Some(Launched::Script(path)) => path == *word,
        // A file of an installed package counts as the package.
        _ => word.contains("/node_modules/"),
    };
    let words = server.iter().skip(1).map(String::as_str);
    let mut scripts = words.filter(absolute).filter(status).filter(is_script);
    let script = scripts.find(|word| !Path::new(word).exists());
    let cwd = kennel.iter().skip_while(|word| *word != "--cwd").nth(1);
    let cwd = cwd
        .map(String::as_str)
        .filter(|dir| !Path::new(dir).is_dir());
    [program, script, cwd].into_iter().flatten().collect()
}

/// Whether a shell would find this program.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = search_path::candidates(OsStr::new(program), Path::new(""), &path);
    let is_relative = program.contains('/') && !program.starts_with('/');
    is_relative
        || candidates
            .iter()
            .any(|path| search_path::is_executable(path))
}
