//! Limit of open files and connections of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit that suffices for all connections, MCP servers and files of the daemon. No more: programs that the daemon
/// starts inherit it, and some of them go through all that there could be.
pub const ENOUGH: u64 = 8192;

/// Raises the limit of open files as far as is permitted, and returns it; `None` is no limit.
pub fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    match current {
        Some(few) if few < wanted => {
            let raised = Rlimit { current: Some(wanted), maximum };
            Some(if setrlimit(Resource::Nofile, raised).is_ok() { wanted } else { few })
        }
        enough => enough,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let before = getrlimit(Resource::Nofile).current;
        let after = raise();
        assert_eq!(after, getrlimit(Resource::Nofile).current);
        assert!(after.is_none_or(|after| before.is_some_and(|before| after >= before)), "{before:?} {after:?}");
        assert_eq!(raise(), after);
    }
}
