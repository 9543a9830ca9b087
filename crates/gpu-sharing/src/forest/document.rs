//! The written form of a forest: exact, versioned, and checked when it is read.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::{Forest, LEAF, TreeNode};

const FORMAT: &str = "eadt-extra-trees";
const VERSION: u32 = 1;
/// A node's bytes: the feature, or [`NO_FEATURE`] for a leaf, and a single-precision number, little-endian.
const NODE_BYTES: usize = 6;
const NO_FEATURE: u16 = u16::MAX;

/// `trees`: nodes in pre-order, base64.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForestDocument {
    format: String,
    version: u32,
    features: Vec<String>,
    trees: Vec<String>,
}

/// The reason why a written forest is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("the format is {found:?}, but this reads {FORMAT:?}")]
    Format { found: String },
    #[error(
        "the forest has version {found}, but this program reads version {VERSION}: train it again or use another program version"
    )]
    Version { found: u32 },
    #[error("the forest has {features} features and {trees} trees: it needs at least one of both, and at most 65,535 features")]
    Empty { features: usize, trees: usize },
    #[error("tree {tree} is damaged: {detail}")]
    Tree { tree: usize, detail: String },
}

impl From<Forest> for ForestDocument {
    fn from(forest: Forest) -> Self {
        let trees = forest.trees.iter().map(|nodes| {
            let mut bytes = Vec::with_capacity(nodes.len() * NODE_BYTES);
            for node in nodes {
                let feature = if node.feature == LEAF { NO_FEATURE } else { node.feature as u16 };
                bytes.extend(feature.to_le_bytes());
                bytes.extend(node.value.to_le_bytes());
            }
            STANDARD.encode(bytes)
        });
        Self { format: FORMAT.to_owned(), version: VERSION, trees: trees.collect(), features: forest.features }
    }
}

impl TryFrom<ForestDocument> for Forest {
    type Error = DocumentError;

    fn try_from(document: ForestDocument) -> Result<Self, DocumentError> {
        if document.format != FORMAT {
            return Err(DocumentError::Format { found: document.format.chars().take(64).collect() });
        }
        if document.version != VERSION {
            return Err(DocumentError::Version { found: document.version });
        }
        let (features, trees) = (document.features.len(), document.trees.len());
        if features == 0 || features >= usize::from(NO_FEATURE) || trees == 0 {
            return Err(DocumentError::Empty { features, trees });
        }
        let read = |(tree, text): (usize, &String)| nodes(text, features).map_err(|detail| DocumentError::Tree { tree, detail });
        let trees = document.trees.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        Ok(Self { features: document.features, trees })
    }
}

/// Reads a tree and finds the right children.
fn nodes(text: &str, features: usize) -> Result<Vec<TreeNode>, String> {
    let bytes = STANDARD.decode(text).map_err(|error| format!("it is not base64: {error}"))?;
    if bytes.is_empty() || !bytes.len().is_multiple_of(NODE_BYTES) {
        return Err(format!("{} bytes are no whole number of nodes", bytes.len()));
    }
    let mut nodes: Vec<TreeNode> = Vec::with_capacity(bytes.len() / NODE_BYTES);
    // Splits whose right child has not come yet.
    let mut open: Vec<usize> = Vec::new();
    for (at, part) in bytes.chunks_exact(NODE_BYTES).enumerate() {
        if at > 0 && !matches!(nodes.last(), Some(last) if last.feature != LEAF) {
            let parent = open.pop().ok_or_else(|| format!("node {at} belongs to no split"))?;
            nodes[parent].right = at as u32;
        }
        let feature = u16::from_le_bytes([part[0], part[1]]);
        let value = f32::from_le_bytes([part[2], part[3], part[4], part[5]]);
        if !value.is_finite() {
            return Err(format!("node {at} holds {value}"));
        }
        if feature == NO_FEATURE {
            nodes.push(TreeNode { value, feature: LEAF, right: 0 });
        } else if usize::from(feature) < features {
            open.push(at);
            nodes.push(TreeNode { value, feature: u32::from(feature), right: 0 });
        } else {
            return Err(format!("node {at} compares feature {feature}, but there are {features}"));
        }
    }
    match (open.last(), nodes.last()) {
        (None, Some(last)) if last.feature == LEAF => Ok(nodes),
        _ => Err("it ends before its last leaf".to_owned()),
    }
}
