//! Landlock: the files and the network that a program reaches.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus, Scope,
};

use super::work_folder::PARTS;
use crate::plan::Plan;

/// The newest version that is requested; older kernels apply the rules that they know.
const NEWEST: ABI = ABI::V7;
/// Devices that every program may use.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/full", "/dev/random", "/dev/urandom"];
/// A shared mapping of it holds memory that no process shows.
const ZERO: &str = "/dev/zero";

/// Restricts this process and all that it becomes or starts. `counts_all`: whether all memory is counted.
pub(super) fn restrict(plan: &Plan, work: &Path, counts_all: bool) -> io::Result<()> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .map_err(io::Error::other)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)
        .map_err(io::Error::other)?;
    if !plan.network {
        rules = rules.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp).map_err(io::Error::other)?;
    }
    let mut rules = rules.create().map_err(io::Error::other)?;
    for path in &plan.read {
        rules = allow(rules, path, AccessFs::from_read(NEWEST))?;
    }
    for path in &plan.write {
        rules = allow(rules, path, AccessFs::from_all(NEWEST))?;
    }
    // A program cannot execute what it writes.
    for part in PARTS {
        rules = allow(rules, &work.join(part), AccessFs::from_all(NEWEST) & !AccessFs::Execute)?;
    }
    for device in DEVICES.into_iter().chain(counts_all.then_some(ZERO)) {
        rules = allow(rules, Path::new(device), AccessFs::ReadFile | AccessFs::WriteFile)?;
    }
    let restricted = rules.restrict_self().map_err(io::Error::other)?;
    match restricted.ruleset {
        RulesetStatus::NotEnforced => Err(io::Error::other("the kernel does not have it, or it is switched off")),
        _ => Ok(()),
    }
}

/// Allows a path and all below it. Ignores a missing path.
fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> io::Result<RulesetCreated> {
    let Ok(opened) = PathFd::new(path) else { return Ok(rules) };
    // Rules for folders are refused for a file.
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
    rules.add_rule(PathBeneath::new(opened, access)).map_err(io::Error::other)
}
