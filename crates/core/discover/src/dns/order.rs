//! The order in which SRV records are used (RFC 2782): by priority, and within one by chance, in proportion
//! to the weights.

use super::message::SrvRecord;

/// Orders the records. `below` returns a random number from 0 to its argument, inclusive.
pub fn in_order(mut records: Vec<SrvRecord>, below: &mut dyn FnMut(u32) -> u32) -> Vec<SrvRecord> {
    // Records without weight come first, so that chance gives them a small part.
    records.sort_by_key(|record| (record.priority, record.weight > 0));
    let mut ordered = Vec::with_capacity(records.len());
    while let Some(first) = records.first() {
        let priority = first.priority;
        let count = records
            .iter()
            .take_while(|record| record.priority == priority)
            .count();
        let all: u32 = records[..count]
            .iter()
            .map(|record| u32::from(record.weight))
            .sum();
        let chosen = below(all);
        let mut sum = 0;
        let at = records[..count].iter().position(|record| {
            sum += u32::from(record.weight);
            sum >= chosen
        });
        ordered.push(records.remove(at.unwrap_or(0)));
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(priority: u16, weight: u16, port: u16) -> SrvRecord {
        SrvRecord {
            priority,
            weight,
            address: format!("tcp://a:{port}").parse().unwrap(),
        }
    }

    fn ports(records: Vec<SrvRecord>, below: &mut dyn FnMut(u32) -> u32) -> Vec<String> {
        let ordered = in_order(records, below);
        ordered
            .iter()
            .map(|record| record.address.to_string().replace("tcp://a:", ""))
            .collect()
    }

    #[test]
    fn a_lower_priority_comes_first_whatever_the_weights() {
        let records = vec![record(20, 900, 1), record(10, 0, 2), record(10, 5, 3)];
        assert_eq!(ports(records.clone(), &mut |_| 0), ["2", "3", "1"]);
        assert_eq!(ports(records, &mut |all| all), ["3", "2", "1"]);
    }

    #[test]
    fn within_a_priority_a_weight_is_a_share() {
        let records = vec![record(0, 10, 1), record(0, 30, 2), record(0, 0, 3)];
        let mut first = [0; 4];
        for number in 0..=40 {
            let mut answer = |all| if all == 40 { number } else { 0 };
            let ordered = ports(records.clone(), &mut answer);
            first[ordered[0].parse::<usize>().unwrap()] += 1;
            assert_eq!(ordered.len(), 3);
        }
        assert_eq!(first, [0, 10, 30, 1]);
    }

    #[test]
    fn no_record_has_no_order() {
        assert!(in_order(Vec::new(), &mut |_| 0).is_empty());
    }
}
