//! Landlock: the files and the network that a program reaches.

use std::io;
use std::os::fd::OwnedFd;
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
    restrict_self(rules(plan, work, counts_all)?)
}

/// Restricts this process as far as no file is concerned, so that its children can enter other file systems.
pub(super) fn restrict_but_for_files(plan: &Plan) -> io::Result<()> {
    let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    restrict_self(handled(rules, plan)?.create().map_err(io::Error::other)?)
}

/// The rules of a program, for a process that restricts itself by them.
pub(super) fn rules_of_fork(plan: &Plan, work: &Path, counts_all: bool) -> io::Result<OwnedFd> {
    Option::from(rules(plan, work, counts_all)?).ok_or_else(missing)
}

fn missing() -> io::Error {
    io::Error::other("the kernel does not have it, or it is switched off")
}

fn restrict_self(rules: RulesetCreated) -> io::Result<()> {
    match rules.restrict_self().map_err(io::Error::other)?.ruleset {
        RulesetStatus::NotEnforced => Err(missing()),
        _ => Ok(()),
    }
}

/// Adds what is refused whatever the paths are.
fn handled(rules: Ruleset, plan: &Plan) -> io::Result<Ruleset> {
    let rules = rules.scope(Scope::AbstractUnixSocket | Scope::Signal).map_err(io::Error::other)?;
    if plan.network {
        return Ok(rules);
    }
    rules.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp).map_err(io::Error::other)
}

fn rules(plan: &Plan, work: &Path, counts_all: bool) -> io::Result<RulesetCreated> {
    let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let rules = rules.handle_access(AccessFs::from_all(NEWEST)).map_err(io::Error::other)?;
    let mut rules = handled(rules, plan)?.create().map_err(io::Error::other)?;
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
    Ok(rules)
}

/// Allows a path and all below it. Ignores a missing path.
fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> io::Result<RulesetCreated> {
    let Ok(opened) = PathFd::new(path) else { return Ok(rules) };
    // Rules for folders are refused for a file.
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
    rules.add_rule(PathBeneath::new(opened, access)).map_err(io::Error::other)
}
