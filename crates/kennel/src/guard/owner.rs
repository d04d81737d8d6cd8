//! The owner: named by a flag, else by a variable. Found before anything else runs.

use kennel_guard::{Owner, Refusal};

/// The variable that names the owner. Only Kennel reads it; it is not passed to the server.
const VARIABLE: &str = "KENNEL_OWNER_PID";

/// The owner, if one is named. An invalid flag is an error. An invalid variable is a warning, because the person who
/// set it may not be the one who runs this command.
pub(super) fn find(flag: Option<&str>) -> Result<Option<Owner>, String> {
    // Removed from the environment even if the flag takes precedence (lesson 22).
    let variable = kennel_sys::env::take(VARIABLE);
    if let Some(text) = flag {
        let owner = Owner::named(text).map_err(|error| format!("--owner-pid: {error}"))?;
        return Ok(Some(owner));
    }
    let Some(taken) = variable else {
        return Ok(None);
    };
    match Owner::named(&taken.value.to_string_lossy()) {
        Ok(owner) => Ok(Some(owner)),
        Err(error @ Refusal::Owner(_)) => {
            crate::warn(&format!("{VARIABLE} is ignored: {error}"));
            Ok(None)
        }
        Err(error) => Err(format!("{VARIABLE}: {error}")),
    }
}
