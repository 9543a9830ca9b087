//! Every name that EADT reads on other people's objects. `docs/operate/policy.md` explains them.

/// API group of `EnergyPolicy`.
pub const GROUP: &str = "eadt.dev";
/// Label of a workload, `"true"`: observed, as by a policy in mode `Observe`; never changed.
pub const OBSERVE: &str = "eadt.dev/observe";
/// Annotation of a workload or a namespace, `"true"`: nothing is changed from the next step on.
pub const PAUSED: &str = "eadt.dev/paused";
/// Annotation of a policy: the id of the decision that may be applied once although the mode is `Recommend`.
pub const APPROVED: &str = "eadt.dev/approved";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::object::PREFIX;

    #[test]
    fn every_name_is_below_the_prefix_that_objects_are_read_by() {
        for name in [OBSERVE, PAUSED, APPROVED] {
            assert!(name.starts_with(PREFIX), "{name}");
        }
        assert_eq!(PREFIX.strip_suffix('/'), Some(GROUP));
    }
}
