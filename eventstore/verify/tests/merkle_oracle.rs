//! Our tree and proofs against an independent implementation of the same.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test may fail loudly"
)]

use fluxvm_verify::merkle::*;
use fluxvm_verify::*;
use tlog_tiles::Hash;
use tlog_tiles::HashReader;

/// Sizes around every shape that a small tree can have.
const EVENTS: u64 = 130;

struct Stored(Vec<TreeHash>);

impl Stored {
    fn new(events: u64) -> (Stored, Frontier) {
        let mut stored = Stored(Vec::new());
        let mut frontier = Frontier::default();
        for n in 1..=events {
            stored.push(&mut frontier, n);
        }
        (stored, frontier)
    }

    fn push(&mut self, frontier: &mut Frontier, n: u64) {
        frontier.push(&event(n), |index, hash| {
            assert_eq!(index, self.0.len() as u64, "a node is stored out of turn");
            self.0.push(hash);
        });
    }

    fn get(&self, index: u64) -> Result<TreeHash, ProofError> {
        Ok(self.0[index as usize])
    }
}

impl HashReader for Stored {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, tlog_tiles::Error> {
        Ok(indexes
            .iter()
            .map(|i| theirs(self.0[*i as usize]))
            .collect())
    }
}

fn event(n: u64) -> EventHash {
    EventHash::from_bytes([n as u8; 32])
}

fn theirs(hash: TreeHash) -> Hash {
    Hash(*hash.as_bytes())
}

fn seq(n: u64) -> GlobalSeq {
    GlobalSeq::new(n).unwrap()
}

#[test]
fn nodes_have_the_numbers_and_roots_that_others_give_them() {
    let (mut stored, mut frontier) = Stored::new(0);
    assert_eq!(frontier.root(), TreeHash::of_nothing());
    for n in 1..=EVENTS {
        stored.push(&mut frontier, n);
        let size = Position::new(n);
        assert_eq!(stored_count(size), tlog_tiles::stored_hash_count(n));
        assert_eq!(stored_count(size), stored.0.len() as u64);
        assert_eq!(
            stored_index(0, n - 1),
            tlog_tiles::stored_hash_index(0, n - 1)
        );
        assert_eq!(stored_index(3, n), tlog_tiles::stored_hash_index(3, n));
        assert_eq!(
            theirs(TreeHash::leaf(&event(n))),
            tlog_tiles::record_hash(event(n).as_bytes())
        );
        let root = frontier.root();
        assert_eq!(theirs(root), tlog_tiles::tree_hash(n, &stored).unwrap());
        assert_eq!(merkle::root(size, |i| stored.get(i)), Ok(root));
        assert_eq!(
            Frontier::read(size, |i| stored.get(i)),
            Ok(frontier.clone())
        );
    }
}

#[test]
fn inclusion_proofs_are_those_of_others_and_every_flipped_bit_is_refused() {
    let (stored, _) = Stored::new(EVENTS);
    for n in (1..=EVENTS).filter(|n| *n < 20 || n.is_power_of_two() || n % 23 == 0) {
        let size = Position::new(n);
        let root = merkle::root(size, |i| stored.get(i)).unwrap();
        for at in 1..=n {
            let path = inclusion_path(seq(at), size, |i| stored.get(i)).unwrap();
            assert_eq!(inclusion_path_length(seq(at), size), Ok(path.len()));
            let mut proof: Vec<Hash> = path.iter().copied().map(theirs).collect();
            assert_eq!(proof, tlog_tiles::prove_record(n, at - 1, &stored).unwrap());
            let leaf = tlog_tiles::record_hash(event(at).as_bytes());
            tlog_tiles::check_record(&proof, n, theirs(root), at - 1, leaf).unwrap();
            verify_inclusion(&event(at), seq(at), size, &path, &root).unwrap();

            assert!(verify_inclusion(&event(at + 1), seq(at), size, &path, &root).is_err());
            for bit in (0..path.len() * 256).step_by(131) {
                let mut bytes = *path[bit / 256].as_bytes();
                bytes[bit % 256 / 8] ^= 1 << (bit % 8);
                let mut forged = path.clone();
                forged[bit / 256] = TreeHash::from_bytes(bytes);
                let refused = verify_inclusion(&event(at), seq(at), size, &forged, &root);
                assert_eq!(refused, Err(ProofError::Root));
                proof[bit / 256] = Hash(bytes);
                assert!(tlog_tiles::check_record(&proof, n, theirs(root), at - 1, leaf).is_err());
                proof[bit / 256] = theirs(path[bit / 256]);
            }
        }
    }
}

#[test]
fn consistency_proofs_are_accepted_by_others_and_every_flipped_bit_is_refused() {
    let (stored, _) = Stored::new(EVENTS);
    let root = |n| merkle::root(Position::new(n), |i| stored.get(i)).unwrap();
    for to in (1..=EVENTS).filter(|n| *n < 34 || n % 29 == 0) {
        for from in 1..=to {
            let (a, b) = (Position::new(from), Position::new(to));
            let path = consistency_path(a, b, |i| stored.get(i)).unwrap();
            let proof: Vec<Hash> = path.iter().copied().map(theirs).collect();
            assert_eq!(proof, tlog_tiles::prove_tree(to, from, &stored).unwrap());
            tlog_tiles::check_tree(&proof, to, theirs(root(to)), from, theirs(root(from))).unwrap();
            verify_consistency((a, &root(from)), (b, &root(to)), &path).unwrap();

            let other = TreeHash::leaf(&event(0));
            assert!(verify_consistency((a, &other), (b, &root(to)), &path).is_err());
            assert!(verify_consistency((a, &root(from)), (b, &other), &path).is_err());
            for bit in (0..path.len() * 256).step_by(251) {
                let mut forged = path.clone();
                let mut bytes = *path[bit / 256].as_bytes();
                bytes[bit % 256 / 8] ^= 1 << (bit % 8);
                forged[bit / 256] = TreeHash::from_bytes(bytes);
                let refused = verify_consistency((a, &root(from)), (b, &root(to)), &forged);
                assert_eq!(refused, Err(ProofError::Root), "{from} {to}");
            }
        }
    }
}

#[test]
fn every_tree_begins_with_the_empty_one() {
    let (stored, frontier) = Stored::new(5);
    let to = (Position::new(5), &frontier.root());
    let path = consistency_path(Position::START, to.0, |i| stored.get(i)).unwrap();
    assert!(path.is_empty());
    let empty = TreeHash::of_nothing();
    verify_consistency((Position::START, &empty), to, &path).unwrap();
    let refused = verify_consistency((Position::START, to.1), to, &path);
    assert_eq!(refused, Err(ProofError::Root));
}

#[test]
fn a_proof_of_another_length_or_beyond_the_tree_is_refused_by_name() {
    let (stored, frontier) = Stored::new(11);
    let (size, root) = (Position::new(11), frontier.root());
    let path = inclusion_path(seq(11), size, |i| stored.get(i)).unwrap();
    let long = [path.clone(), vec![root]].concat();
    let length = |found| Err(ProofError::Length { found, wanted: 2 });
    let check = |path: &[TreeHash]| verify_inclusion(&event(11), seq(11), size, path, &root);
    assert_eq!((check(&path[1..]), check(&long)), (length(1), length(3)));

    let beyond = Err(ProofError::Beyond { wanted: 12, size });
    assert_eq!(inclusion_path(seq(12), size, |i| stored.get(i)), beyond);
    let to = Position::new(12);
    assert_eq!(consistency_path(to, size, |i| stored.get(i)), beyond);
    let too_large = Position::new(TREE_EVENTS_MAX + 1);
    assert_eq!(
        merkle::root(too_large, |i| stored.get(i)),
        Err(ProofError::TooLarge { size: too_large })
    );

    let from = Position::new(6);
    let old = merkle::root(from, |i| stored.get(i)).unwrap();
    let path = consistency_path(from, size, |i| stored.get(i)).unwrap();
    let check = |path: &[TreeHash]| verify_consistency((from, &old), (size, &root), path);
    check(&path).unwrap();
    for short in 0..path.len() {
        assert!(matches!(
            check(&path[..short]),
            Err(ProofError::Length { .. })
        ));
    }
    let long = [path.clone(), vec![root]].concat();
    assert!(matches!(check(&long), Err(ProofError::Length { .. })));
}
