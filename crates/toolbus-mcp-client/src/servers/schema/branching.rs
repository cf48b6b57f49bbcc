//! Estimate of how often a schema applies its parts to one value.
//!
//! A validator that looks for all errors forgets what it has seen: schemas that are reached by two ways are run twice,
//! and in a schema that contains itself each level of the value would double that.

use std::collections::{HashMap, HashSet};

use super::graph::Graph;
use super::keywords::SchemaStep;
use super::{MAX_EXPANDED, SchemaProblem};

/// Number of runs of a schema where a keyword depends on what the schema has evaluated.
const LOOKING_BACK: usize = 3;

/// Refuses what would not end, and what would take much longer than its arguments are long.
pub(super) fn check(graph: &Graph<'_>) -> Result<(), SchemaProblem> {
    let expanded = expanded(graph)?;
    let order = Order::of(graph);
    // How many schemas a schema applies to one value at most: to its own, or to any within it.
    let mut load = expanded;
    let within = |load: &[usize], index: usize, counts: &dyn Fn(usize) -> bool| {
        let weight = |target: usize| if counts(target) { load.get(target).copied().unwrap_or_default() } else { 0 };
        heaviest(graph, &applied(graph, index), weight)
    };
    for &index in &order.ending {
        raise(&mut load, index, |load| within(load, index, &|_| true))?;
    }
    for &index in &order.recursive {
        let again = heaviest(graph, &applied(graph, index), |target| usize::from(!order.ends(target)));
        if again > 1 {
            return Err(SchemaProblem::Branching);
        }
        raise(&mut load, index, |load| within(load, index, &|target| order.ends(target)))?;
    }
    for &index in &order.above {
        raise(&mut load, index, |load| within(load, index, &|_| true))?;
    }
    Ok(())
}

fn raise(load: &mut [usize], index: usize, of: impl FnOnce(&[usize]) -> usize) -> Result<(), SchemaProblem> {
    let heaviest = of(load);
    if heaviest > MAX_EXPANDED {
        return Err(SchemaProblem::Expanded);
    }
    if let Some(own) = load.get_mut(index) {
        *own = heaviest.max(*own);
    }
    Ok(())
}

/// For each schema the number of those that it applies to the same value, with itself.
fn expanded(graph: &Graph<'_>) -> Result<Vec<usize>, SchemaProblem> {
    let order = pruned(graph.len(), |index| graph.same(index).collect());
    if order.len() < graph.len() {
        return Err(SchemaProblem::Endless);
    }
    let mut expanded = vec![1_usize; graph.len()];
    for index in order {
        let within: usize = graph.same(index).filter_map(|target| expanded.get(target)).sum();
        let within = if graph.looks_back(index) { within * LOOKING_BACK } else { within };
        if within >= MAX_EXPANDED {
            return Err(SchemaProblem::Expanded);
        }
        if let Some(own) = expanded.get_mut(index) {
            *own += within;
        }
    }
    Ok(expanded)
}

/// All schemas, in an order in which their loads can be known.
struct Order {
    /// Schemas that do not reach themselves, each after all that it applies.
    ending: Vec<usize>,
    /// Schemas that may reach themselves.
    recursive: Vec<usize>,
    /// Schemas that reach recursive ones without being part of them, each after all that it applies.
    above: Vec<usize>,
    ends: HashSet<usize>,
}

impl Order {
    fn of(graph: &Graph<'_>) -> Self {
        let targets = |index: usize| -> Vec<usize> {
            graph
                .edges(index)
                .iter()
                .filter(|(step, _)| *step != SchemaStep::Nothing)
                .map(|(_, target)| *target)
                .collect()
        };
        let ending = pruned(graph.len(), targets);
        let ends: HashSet<usize> = ending.iter().copied().collect();
        let mut sources = vec![Vec::new(); graph.len()];
        for index in 0..graph.len() {
            for target in targets(index) {
                sources.get_mut(target).into_iter().for_each(|sources: &mut Vec<usize>| sources.push(index));
            }
        }
        let mut above = pruned(graph.len(), |index| sources.get(index).cloned().unwrap_or_default());
        above.retain(|index| !ends.contains(index));
        above.reverse();
        let known: HashSet<usize> = ending.iter().chain(&above).copied().collect();
        let recursive = (0..graph.len()).filter(|index| !known.contains(index)).collect();
        Self { ending, recursive, above, ends }
    }

    fn ends(&self, index: usize) -> bool {
        self.ends.contains(&index)
    }
}

/// The schemas from which no circle can be reached, each after all that it leads to.
fn pruned(count: usize, targets: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let mut left = vec![0_usize; count];
    let mut sources = vec![Vec::new(); count];
    for (index, left) in left.iter_mut().enumerate() {
        for target in targets(index) {
            *left += 1;
            sources.get_mut(target).into_iter().for_each(|sources: &mut Vec<usize>| sources.push(index));
        }
    }
    let mut order: Vec<usize> = (0..count).filter(|index| left.get(*index) == Some(&0)).collect();
    let mut next = 0;
    while let Some(&index) = order.get(next) {
        next += 1;
        for &source in sources.get(index).into_iter().flatten() {
            let Some(left) = left.get_mut(source) else { continue };
            *left -= 1;
            if *left == 0 {
                order.push(source);
            }
        }
    }
    order
}

/// The schemas that a schema applies to the same value, itself first, each as often as it is reached.
fn applied(graph: &Graph<'_>, index: usize) -> Vec<usize> {
    let mut applied = vec![index];
    let mut next = 0;
    while let Some(&index) = applied.get(next) {
        next += 1;
        applied.extend(graph.same(index));
    }
    applied
}

/// The most that the schemas in `applied` apply to any one part of a value.
fn heaviest(graph: &Graph<'_>, applied: &[usize], weight: impl Fn(usize) -> usize) -> usize {
    let (mut any_property, mut any_item) = (0, 0);
    let mut at: HashMap<SchemaStep<'_>, usize> = HashMap::new();
    // What applies to other properties or items than these.
    let mut not_at: HashMap<SchemaStep<'_>, usize> = HashMap::new();
    for &index in applied {
        let edges = graph.edges(index);
        let of =
            |kind| edges.iter().filter(|(step, _)| *step == kind).map(|(_, target)| weight(*target)).sum::<usize>();
        let (other_property, other_item) = (of(SchemaStep::OtherProperty), of(SchemaStep::OtherItem));
        any_property += other_property + of(SchemaStep::AnyProperty);
        any_item += other_item + of(SchemaStep::AnyItem);
        let mut named = HashSet::new();
        for &(step, target) in edges {
            let other = match step {
                SchemaStep::Property(_) => other_property,
                SchemaStep::Item(_) => other_item,
                _ => continue,
            };
            *at.entry(step).or_default() += weight(target);
            if named.insert(step) {
                *not_at.entry(step).or_default() += other;
            }
        }
    }
    let anywhere =
        |step: &SchemaStep<'_>| if matches!(step, SchemaStep::Property(_)) { any_property } else { any_item };
    let there = at.iter().map(|(step, own)| own + anywhere(step) - not_at.get(step).copied().unwrap_or_default());
    there.chain([any_property, any_item]).max().unwrap_or_default()
}
