import com.sun.jdi.Bootstrap;
import com.sun.jdi.ThreadReference;
import com.sun.jdi.VirtualMachine;
import com.sun.jdi.connect.AttachingConnector;
import com.sun.jdi.connect.Connector;
import com.sun.jdi.event.Event;
import com.sun.jdi.event.EventSet;
import com.sun.jdi.event.MethodEntryEvent;
import com.sun.jdi.request.EventRequest;
import com.sun.jdi.request.MethodEntryRequest;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeSet;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Operations of Kafka, and a debugger that records which of Kafka's methods a JVM enters.
 *
 * <p>{@code recover TORN TORN}, {@code append LOG} and {@code send BOOTSTRAP TOPIC} run an operation
 * once, print {@code ready}, run it again after a line of input, and print {@code done}.
 *
 * <p>{@code record PORT THREAD...} attaches to a JVM, prints {@code ready}, records from then on
 * until a line of input, and prints the classes of Kafka whose methods were entered by the threads
 * whose names begin so; then the number of calls.
 */
public class KafkaCodePaths {
    private static final BufferedReader INPUT =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static final long POLL_MS = 20;
    private static final List<String> PACKAGES = List.of("org.apache.kafka.*", "kafka.*");

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "record" -> record(arguments[1], List.of(arguments).subList(2, arguments.length));
            case "recover" -> {
                File first = new File(arguments[1]);
                File second = new File(arguments[2]);
                twice(() -> opened(first, false), () -> opened(second, false));
            }
            case "append" -> {
                UnifiedLog log = opened(new File(arguments[1]), true);
                twice(() -> append(log), () -> append(log));
            }
            default -> send(arguments[1], arguments[2]);
        }
        System.exit(0);
    }

    private interface Operation {
        void run() throws Exception;
    }

    private static void twice(Operation first, Operation second) throws Exception {
        first.run();
        System.out.println("ready");
        INPUT.readLine();
        second.run();
        System.out.println("done");
        INPUT.readLine();
    }

    private static UnifiedLog opened(File directory, boolean isClean) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        return UnifiedLog.create(
            directory, new LogConfig(Map.of()), 0, 0, scheduler, new BrokerTopicStats(),
            Time.SYSTEM, 300_000, new ProducerStateManagerConfig(86_400_000, false), 600_000,
            new LogDirFailureChannel(1), isClean, Optional.empty());
    }

    private static void append(UnifiedLog log) throws Exception {
        SimpleRecord record = new SimpleRecord(System.currentTimeMillis(), "third".getBytes());
        log.appendAsLeader(MemoryRecords.withRecords(Compression.NONE, record), 1);
        log.flush(false);
    }

    private static void send(String bootstrap, String topic) throws Exception {
        Map<String, Object> config = Map.of(
            "bootstrap.servers", bootstrap,
            "key.serializer", ByteArraySerializer.class,
            "value.serializer", ByteArraySerializer.class);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config);
        Operation one = () -> producer.send(new ProducerRecord<>(topic, "value".getBytes())).get();
        twice(one, one);
    }

    private static void record(String port, List<String> threads) throws Exception {
        VirtualMachine machine = attached(port);
        for (ThreadReference thread : machine.allThreads()) {
            if (threads.stream().noneMatch(thread.name()::startsWith)) {
                continue;
            }
            for (String one : PACKAGES) {
                MethodEntryRequest request =
                    machine.eventRequestManager().createMethodEntryRequest();
                request.addThreadFilter(thread);
                request.addClassFilter(one);
                request.setSuspendPolicy(EventRequest.SUSPEND_EVENT_THREAD);
                request.enable();
            }
        }
        System.out.println("ready");
        TreeSet<String> entered = new TreeSet<>();
        long calls = 0;
        while (!INPUT.ready()) {
            EventSet events = machine.eventQueue().remove(POLL_MS);
            if (events == null) {
                continue;
            }
            for (Event event : events) {
                if (event instanceof MethodEntryEvent entry) {
                    entered.add(entry.location().declaringType().name());
                    calls++;
                }
            }
            events.resume();
        }
        machine.dispose();
        entered.forEach(System.out::println);
        System.out.println(calls);
    }

    private static VirtualMachine attached(String port) throws Exception {
        for (AttachingConnector one : Bootstrap.virtualMachineManager().attachingConnectors()) {
            if (one.name().equals("com.sun.jdi.SocketAttach")) {
                Map<String, Connector.Argument> arguments = one.defaultArguments();
                arguments.get("hostname").setValue("127.0.0.1");
                arguments.get("port").setValue(port);
                return one.attach(arguments);
            }
        }
        throw new IllegalStateException("this JDK has no connector to a socket");
    }
}
