//! Energy, cost and carbon; fits; the choice of clocks and caps. Pure.
