import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.Collectors;

import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.server.share.persister.PersisterStateBatch;

/**
 * Prints random batches of delivery states and what the share coordinator combines them to, one case
 * a line: start offset, batches before, new batches, combined batches.
 *
 * Arguments: seed, number of cases.
 */
public class ShareBatches {
    private static final byte[] STATES = {0, 2, 4};

    public static void main(String[] args) {
        Random random = new Random(Long.parseLong(args[0]));
        for (int at = 0; at < Integer.parseInt(args[1]); at++) {
            long start = random.nextInt(16) - 1;
            List<PersisterStateBatch> before = new PersisterStateBatchCombiner(batches(random), List.of(), -1).combineStateBatches();
            List<PersisterStateBatch> later = batches(random);
            List<PersisterStateBatch> combined = new PersisterStateBatchCombiner(before, later, start).combineStateBatches();
            System.out.println(start + "\t" + text(before) + "\t" + text(later) + "\t" + text(combined));
        }
    }

    private static List<PersisterStateBatch> batches(Random random) {
        List<PersisterStateBatch> found = new ArrayList<>();
        for (int left = random.nextInt(7); left > 0; left--) {
            long first = random.nextInt(24);
            short count = (short) (1 + random.nextInt(3));
            found.add(new PersisterStateBatch(first, first + random.nextInt(9), STATES[random.nextInt(3)], count));
        }
        return found;
    }

    private static String text(List<PersisterStateBatch> batches) {
        return batches.stream()
            .map(one -> one.firstOffset() + "," + one.lastOffset() + "," + one.deliveryCount() + "," + one.deliveryState())
            .collect(Collectors.joining(";"));
    }
}
