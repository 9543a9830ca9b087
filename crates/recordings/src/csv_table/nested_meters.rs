//! Names of meters of which one measures a part of what another does: the domains of RAPL, and the sides of a power distribution
//! unit.

use std::collections::HashMap;

use crate::units::lowercase_words;

/// Parts of a meter's name: its quantity, and the whole that it is a part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MeterName {
    /// The words before those of the domain or side, such as a host.
    scope: Vec<String>,
    role: Role,
    /// The number of the package, where the name has it.
    package: Option<String>,
}

/// A domain of RAPL, or a side of a power distribution unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    /// All of the platform: `psys`.
    Platform,
    /// A socket: `package-0`.
    Package,
    /// A part of a package: `core`, `uncore`.
    Core,
    /// Memory, which is none of a package.
    Memory,
    Inlet,
    /// One of the phases, or lines, of an inlet.
    Phase,
    Outlet,
}

/// The words of each role, beside `pp0` and `L1`. The last that a name has counts.
const ROLE_WORDS: [(Role, &[&str]); 7] = [
    (Role::Platform, &["psys"]),
    (Role::Package, &["package", "pkg"]),
    (Role::Core, &["core", "cores", "uncore"]),
    (Role::Memory, &["dram"]),
    (Role::Inlet, &["infeed", "inlet", "inlets", "mains"]),
    (Role::Phase, &["line", "phase"]),
    (Role::Outlet, &["outlet", "outlets"]),
];
/// Words beside those of a role that do not show the quantity.
const WORDS_BESIDE_ROLES: [&str; 28] = [
    "a",
    "active",
    "b",
    "c",
    "consumed",
    "consumption",
    "domain",
    "draw",
    "energy",
    "intel",
    "j",
    "joules",
    "kwh",
    "l",
    "mw",
    "n",
    "power",
    "pwr",
    "rapl",
    "real",
    "total",
    "uj",
    "usage",
    "uw",
    "w",
    "watt",
    "watts",
    "zone",
];

fn role_of(word: &str) -> Option<Role> {
    ROLE_WORDS.iter().find(|(_, words)| words.contains(&word)).map(|(role, _)| *role)
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

impl MeterName {
    /// Returns `None` if a name is of no such meter.
    pub(super) fn new(name: &str) -> Option<Self> {
        // `pp0` and `L1` are two words.
        let words = lowercase_words(name);
        let is_silent = |word: &String| is_number(word) || WORDS_BESIDE_ROLES.contains(&word.as_str());
        let role_at = |at: usize| match (words[at].as_str(), words.get(at + 1).map(String::as_str)) {
            ("pp", Some("0" | "1")) => Some(Role::Core),
            // `L1` and no more, as lines of a supply are called.
            ("l", Some("1" | "2" | "3")) if at + 2 == words.len() || is_silent(&words[at + 2]) => Some(Role::Phase),
            (word, _) => role_of(word),
        };
        let at = (0..words.len()).find(|at| role_at(*at).is_some())?;
        let roles: Vec<Role> = (at..words.len()).filter_map(role_at).collect();
        let is_known = |index: usize| role_at(index).is_some() || is_silent(&words[index]);
        if !(at..words.len()).all(is_known) {
            return None;
        }
        // `package-0-core` is the core, `inlet L1` the phase.
        let role = roles.last().copied()?;
        let package = words.get(at + 1).filter(|word| roles[0] == Role::Package && is_number(word)).cloned();
        // A single letter may be a host.
        let is_of_scope = |word: &&String| word.len() == 1 || !WORDS_BESIDE_ROLES.contains(&word.as_str());
        let scope = words[..at].iter().filter(is_of_scope).cloned().collect();
        Some(Self { scope, role, package })
    }
}

/// The first place of each meter by what its parts have in common with it.
#[derive(Debug, Default)]
pub(super) struct MeterIndex<'m> {
    of_role: HashMap<(&'m [String], Role), usize>,
    packages: HashMap<(&'m [String], Option<&'m str>), usize>,
}

impl<'m> MeterIndex<'m> {
    /// Adds a meter. Places must rise.
    pub(super) fn add(&mut self, place: usize, meter: &'m MeterName) {
        let scope = meter.scope.as_slice();
        self.of_role.entry((scope, meter.role)).or_insert(place);
        if meter.role == Role::Package {
            self.packages.entry((scope, meter.package.as_deref())).or_insert(place);
        }
    }

    /// Finds the first meter that measures what another does a part of.
    pub(super) fn find_whole(&self, part: &MeterName) -> Option<usize> {
        let scope = part.scope.as_slice();
        let of = |role: Role| self.of_role.get(&(scope, role)).copied();
        let package = || match part.package.as_deref() {
            None => of(Role::Package),
            number => [None, number].iter().filter_map(|number| self.packages.get(&(scope, *number)).copied()).min(),
        };
        let wholes = match part.role {
            Role::Package | Role::Memory => [of(Role::Platform), None],
            Role::Core => [of(Role::Platform), package()],
            Role::Phase => [of(Role::Inlet), None],
            Role::Outlet => [of(Role::Inlet), of(Role::Phase)],
            Role::Platform | Role::Inlet => [None, None],
        };
        wholes.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_and_sides_are_parts_of_their_whole() {
        for (part, whole, is_part) in [
            ("core", "package-0", true),
            ("uncore", "package-0", true),
            ("package-0", "psys", true),
            ("dram", "psys", true),
            ("dram", "package-0", false),
            ("package-1", "package-0", false),
            ("package-1-core", "package-0", false),
            ("package-0-core", "package-0", true),
            ("n1 package-0 core", "n2 package-0", false),
            ("n1/core", "n1/package-0", true),
            ("energy-cores", "energy-pkg", true),
            ("pp0 power", "pkg power", true),
            ("rapl_core_uj", "rapl_package_uj", true),
            ("core_power_w", "package-0 power (W)", true),
            ("outlet 3", "inlet", true),
            ("pdu1 outlet 3", "pdu1 inlet", true),
            ("pdu2 outlet 3", "pdu1 inlet", false),
            ("phase A", "inlet", true),
            ("L1", "Inlet Power", true),
            ("Outlet1 Active Power", "phase L2", true),
            ("inlet", "outlet 3", false),
            // No meters of this kind.
            ("core-switch", "package-0", false),
            ("core", "gpu0", false),
            ("l4", "inlet", false),
            ("NVIDIA L4", "inlet", false),
            ("phase", "gpu0", false),
            ("online", "inlet", false),
        ] {
            let [part_name, whole_name] = [part, whole].map(MeterName::new);
            let mut index = MeterIndex::default();
            if let Some(whole) = &whole_name {
                index.add(7, whole);
            }
            let found = part_name.and_then(|part| index.find_whole(&part));
            assert_eq!(found, is_part.then_some(7), "{part} in {whole}");
        }
    }
}
