use serde::Serialize;

/// A workload on a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant<'a> {
    pub workload: &'a str,
    /// Part of the GPU's power that is its own; `None`: not known.
    pub share: Option<f64>,
}

/// Energy of one GPU by workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attribution<'a> {
    /// Joules of each tenant, in their order; `None` where its share is not known.
    pub workloads: Vec<(&'a str, Option<f64>)>,
    /// What belongs to nobody that is known: idle power, tenants without a share.
    pub unattributed_joules: f64,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidShares {
    #[error("share {share} of workload={workload} is not within 0 and 1")]
    Share { workload: String, share: f64 },
    #[error("shares sum to {sum}; those of one GPU at one instant sum to at most 1")]
    Sum { sum: f64 },
}

/// Splits a GPU's energy by the tenants' shares. What they leave stays unattributed; nothing is invented.
pub fn attribute<'a>(joules: f64, tenants: &[Tenant<'a>]) -> Result<Attribution<'a>, InvalidShares> {
    let mut sum = 0.0;
    for tenant in tenants {
        let Some(share) = tenant.share else { continue };
        if !(0.0..=1.0).contains(&share) {
            return Err(InvalidShares::Share { workload: tenant.workload.to_owned(), share });
        }
        sum += share;
    }
    if sum > 1.0 + 1e-9 {
        return Err(InvalidShares::Sum { sum });
    }
    let workloads = tenants.iter().map(|tenant| (tenant.workload, tenant.share.map(|share| share * joules))).collect();
    Ok(Attribution { workloads, unattributed_joules: (1.0 - sum).max(0.0) * joules })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_rest_are_the_whole() {
        let tenants = [
            Tenant { workload: "a/x", share: Some(0.5) },
            Tenant { workload: "a/y", share: Some(0.25) },
            Tenant { workload: "a/z", share: None },
        ];
        let parts = attribute(1000.0, &tenants).unwrap();
        assert_eq!(parts.workloads, [("a/x", Some(500.0)), ("a/y", Some(250.0)), ("a/z", None)]);
        assert_eq!(parts.unattributed_joules, 250.0);
        let over = [Tenant { workload: "a/x", share: Some(0.7) }, Tenant { workload: "a/y", share: Some(0.7) }];
        assert_eq!(attribute(1.0, &over), Err(InvalidShares::Sum { sum: 1.4 }));
        let wrong = [Tenant { workload: "a/x", share: Some(70.0) }];
        assert!(attribute(1.0, &wrong).unwrap_err().to_string().contains("a/x"));
    }
}
