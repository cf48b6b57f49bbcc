//! Compiles rules for system calls into a filter that finds a call by bisection.
//!
//! `seccompiler` compares a call with every listed one in turn. The kernel compiles a filter anew for each program, and
//! walks it for every call that there is, to remember those that are always allowed: of a long one that takes longer than
//! a program makes use of it.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch, sock_filter};

/// Rules by the number of their call. A call without rules is matched in any case.
pub(super) type SyscallRules = BTreeMap<i64, Vec<SeccompRule>>;

/// Instructions at the beginning of a filter of `seccompiler`: three that check the architecture, and one that loads the
/// number of the call.
const HEAD: usize = 4;
const GREATER_OR_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Compiles a filter with the decisions of a [`SeccompFilter`] of the same rules: `action` for calls that match, and
/// `otherwise` for all others.
pub(super) fn compile(
    arch: TargetArch,
    rules: SyscallRules,
    otherwise: SeccompAction,
    action: SeccompAction,
) -> io::Result<BpfProgram> {
    let of_one = |number: i64, rules: Vec<SeccompRule>| {
        let one = BTreeMap::from([(number, rules)]);
        let filter = SeccompFilter::new(one, otherwise.clone(), action.clone(), arch).map_err(io::Error::other)?;
        BpfProgram::try_from(filter).map_err(io::Error::other)
    };
    let [matched, unmatched] = [&action, &otherwise].map(|action| vec![returns(action.clone().into())]);
    let mut program = of_one(0, Vec::new())?;
    program.truncate(HEAD);
    let mut ranges = vec![Range { first: 0, decision: unmatched.clone() }];
    for (number, rules) in rules {
        let first = u32::try_from(number).map_err(io::Error::other)?;
        let decision = if rules.is_empty() { matched.clone() } else { of_one(number, rules)?.split_off(HEAD) };
        // The range of calls after the one before, unless there are none.
        ranges.pop_if(|last| last.first == first);
        if ranges.last().is_none_or(|last| last.decision != decision) {
            ranges.push(Range { first, decision });
        }
        ranges.push(Range { first: first + 1, decision: unmatched.clone() });
    }
    program.extend(bisect(&ranges));
    Ok(program)
}

/// Calls with the same decision, up to the next range.
#[derive(Debug)]
struct Range {
    first: u32,
    /// Instructions that end with a return, for the loaded number of one of these calls.
    decision: BpfProgram,
}

/// Instructions that find the range of the loaded number.
fn bisect(ranges: &[Range]) -> BpfProgram {
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let Some(middle) = upper.first().filter(|_| !lower.is_empty()) else {
        return upper.first().map_or_else(Vec::new, |only| only.decision.clone());
    };
    let (first, lower, upper) = (middle.first, bisect(lower), bisect(upper));
    let mut found = match u8::try_from(lower.len()) {
        Ok(length) => vec![sock_filter { code: GREATER_OR_EQUAL, jt: length, jf: 0, k: first }],
        Err(_) => {
            let length = u32::try_from(lower.len()).unwrap_or(u32::MAX);
            vec![
                sock_filter { code: GREATER_OR_EQUAL, jt: 0, jf: 1, k: first },
                sock_filter { code: JUMP, jt: 0, jf: 0, k: length },
            ]
        }
    };
    found.extend(lower);
    found.extend(upper);
    found
}

const fn returns(value: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k: value }
}

/// Runs filters, in tests.
#[cfg(test)]
pub(super) mod machine {
    use super::*;

    /// A system call, as a filter sees it.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Call {
        pub(crate) number: u32,
        pub(crate) arch: u32,
        pub(crate) args: [u64; 6],
    }

    impl Call {
        fn load(&self, offset: u32) -> u32 {
            match offset {
                0 => self.number,
                4 => self.arch,
                _ => {
                    let arg = self.args[(offset as usize - 16) / 8];
                    if offset.is_multiple_of(8) { arg as u32 } else { (arg >> 32) as u32 }
                }
            }
        }
    }

    /// Returns what the kernel does with a call: the value that the filter returns.
    pub(crate) fn decide(program: &[sock_filter], call: &Call) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let instruction = &program[at];
            let k = instruction.k;
            at += 1;
            let jump = |is_true: bool| usize::from(if is_true { instruction.jt } else { instruction.jf });
            match u32::from(instruction.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => loaded = call.load(k),
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => loaded &= k,
                code if code == libc::BPF_JMP | libc::BPF_JA => at += k as usize,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => at += jump(loaded == k),
                code if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => at += jump(loaded >= k),
                code if code == libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K => at += jump(loaded > k),
                code if code == libc::BPF_RET | libc::BPF_K => return k,
                code => panic!("instruction {code:#x}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition};

    use super::machine::{Call, decide};
    use super::*;

    fn is(argument: u8, value: u64) -> Vec<SeccompRule> {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value).unwrap();
        vec![SeccompRule::new(vec![condition]).unwrap()]
    }

    #[test]
    fn a_call_is_found_wherever_it_is_in_the_list() {
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let error = SeccompAction::Errno(1);
        // Calls at the beginning, beside each other, alone, and so many conditions that short jumps do not reach.
        let numbers = [0, 1, 2, 5, 7, 8].into_iter().chain((20..60).map(|number| number * 2));
        let rules: SyscallRules =
            numbers.map(|number| (number, if number % 3 == 2 { is(2, 7 << 32) } else { Vec::new() })).collect();
        let ours = compile(arch, rules.clone(), error.clone(), SeccompAction::Allow).unwrap();
        let whole = SeccompFilter::new(rules, error, SeccompAction::Allow, arch).unwrap();
        let theirs = BpfProgram::try_from(whole).unwrap();
        let arch = ours[1].k;
        for number in (0..200).chain([u32::MAX, 0x4000_0000, 0x4000_0001]) {
            for (argument, arch) in [(7 << 32, arch), (7, arch), (7 << 32, arch ^ 1)] {
                let call = Call { number, arch, args: [argument; 6] };
                assert_eq!(decide(&ours, &call), decide(&theirs, &call), "{call:?}");
            }
        }
    }
}
