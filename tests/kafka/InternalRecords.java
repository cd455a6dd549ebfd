import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.MessageFormatter;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.message.ConsumerProtocolAssignment;
import org.apache.kafka.common.message.ConsumerProtocolSubscription;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.serialization.BytesApiMessageSerde;
import org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter;
import org.apache.kafka.tools.consumer.OffsetsMessageFormatter;
import org.apache.kafka.tools.consumer.TransactionLogMessageFormatter;
import org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter;

/**
 * Prints random records of Kafka's internal logs, each in every version, as Kafka's classes encode
 * them, as kafka-dump-log's parsers print them, and as formatters of the console consumer do: topic,
 * key, value, key as text, value as text, and the record as formatted, which may be empty.
 *
 * Arguments: seed, records of each version.
 */
public class InternalRecords {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final HexFormat HEX = HexFormat.of();
    private static final String GROUP = "org.apache.kafka.coordinator.group.generated.";
    private static final String SHARE = "org.apache.kafka.coordinator.share.generated.";
    private static final String TRANSACTION = "org.apache.kafka.coordinator.transaction.generated.";
    private static final String REMOTE = "org.apache.kafka.server.log.remote.metadata.storage.generated.";
    private static final String[] WORDS = {
        "", "a", "orders", "\"q\" \\ /", "line\nbreak\t\u0001\u001f\u007f", "Grüße", "日本", "😀x", "consumer", "-"
    };
    private static final Set<String> NULLABLE_STRUCTS = Set.of("userEndpoint", "classicMemberMetadata");

    private final Random random;
    private final int count;

    private InternalRecords(long seed, int count) {
        this.random = new Random(seed);
        this.count = count;
    }

    public static void main(String[] args) throws Exception {
        InternalRecords all = new InternalRecords(Long.parseLong(args[0]), Integer.parseInt(args[1]));
        all.coordinator("__consumer_offsets", GROUP, "OffsetsMessageParser",
            new OffsetsMessageFormatter(), new GroupMetadataMessageFormatter());
        all.coordinator("__transaction_state", TRANSACTION, "TransactionLogMessageParser",
            new TransactionLogMessageFormatter());
        all.coordinator("__share_group_state", SHARE, "ShareGroupStateMessageParser",
            new ShareGroupStateMessageFormatter());
        all.remote();
    }

    private void coordinator(
        String topic, String generated, String parserName, MessageFormatter... formatters
    ) throws Exception {
        Class<?> parserClass = Class.forName("org.apache.kafka.tools.DumpLogSegments$" + parserName);
        Constructor<?> constructor = parserClass.getDeclaredConstructor();
        constructor.setAccessible(true);
        Object parser = constructor.newInstance();
        var parse = parserClass.getMethod("parse", Record.class);
        parse.setAccessible(true);
        Class<?> types = Class.forName(generated + "CoordinatorRecordType");
        for (Object type : types.getEnumConstants()) {
            ApiMessage probe = (ApiMessage) types.getMethod("newRecordValue").invoke(type);
            for (short v = probe.lowestSupportedVersion(); v <= probe.highestSupportedVersion(); v++) {
                for (int at = 0; at < count; at++) {
                    ApiMessage key = (ApiMessage) types.getMethod("newRecordKey").invoke(type);
                    ApiMessage value = (ApiMessage) types.getMethod("newRecordValue").invoke(type);
                    fill(key, schema(key, (short) 0), false);
                    fill(value, schema(value, v), at % 2 == 1);
                    byte[] keyBytes = MessageUtil.toCoordinatorTypePrefixedBytes(key);
                    byte[] bytes = at == count - 1 && v == 0 ? null : MessageUtil.toVersionPrefixedBytes(v, value);
                    Object result = parse.invoke(parser, record(keyBytes, bytes));
                    String formatted = formatted(formatters, topic, keyBytes, bytes);
                    print(topic, keyBytes, bytes, text(result, "key"), text(result, "value"), formatted);
                }
            }
        }
    }

    private void remote() throws Exception {
        Class<?> types = Class.forName(REMOTE + "MetadataRecordType");
        Class<?> converters = Class.forName(REMOTE + "MetadataJsonConverters");
        BytesApiMessageSerde serde = new BytesApiMessageSerde() {
            @Override
            public ApiMessage apiMessageFor(short apiKey) {
                throw new UnsupportedOperationException();
            }
        };
        for (Object type : types.getEnumConstants()) {
            ApiMessage probe = (ApiMessage) types.getMethod("newMetadataRecord").invoke(type);
            for (short v = probe.lowestSupportedVersion(); v <= probe.highestSupportedVersion(); v++) {
                for (int at = 0; at < count; at++) {
                    ApiMessage value = (ApiMessage) types.getMethod("newMetadataRecord").invoke(type);
                    fill(value, schema(value, v), false);
                    byte[] bytes = serde.serialize(new ApiMessageAndVersion(value, v));
                    Object data = converters.getMethod("writeJson", ApiMessage.class, short.class).invoke(null, value, v);
                    String text = "{\"type\":\"" + type + "\",\"version\":" + v + ",\"data\":" + data + "}";
                    print("__remote_log_metadata", null, bytes, "", text, "");
                }
            }
        }
    }

    private static String formatted(MessageFormatter[] formatters, String topic, byte[] key, byte[] value) {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        for (MessageFormatter one : formatters) {
            one.writeTo(new ConsumerRecord<>(topic, 0, 0L, key, value), new PrintStream(output, true));
        }
        return output.toString(StandardCharsets.UTF_8).trim();
    }

    private static void print(
        String topic, byte[] key, byte[] value, String keyText, String valueText, String formatted
    ) {
        OUT.println(String.join("\t", topic, hex(key), hex(value), keyText, valueText, formatted));
    }

    private static String hex(byte[] data) {
        return data == null ? "-" : HEX.formatHex(data);
    }

    private static String text(Object result, String part) throws Exception {
        var method = result.getClass().getDeclaredMethod(part);
        method.setAccessible(true);
        return ((Optional<?>) method.invoke(result)).map(Object::toString).orElse("");
    }

    private static Record record(byte[] key, byte[] value) {
        MemoryRecords records = MemoryRecords.withRecords(Compression.NONE, new SimpleRecord(0L, key, value));
        return records.records().iterator().next();
    }

    private static Schema schema(Message message, short version) throws Exception {
        return ((Schema[]) message.getClass().getField("SCHEMAS").get(null))[version];
    }

    /** Sets the fields that the schema has; `consumers` makes a classic group one of consumers. */
    private void fill(Object message, Schema schema, boolean consumers) throws Exception {
        for (BoundField bound : schema.fields()) {
            if (bound.def.type instanceof TaggedFields tagged) {
                Field known = TaggedFields.class.getDeclaredField("fields");
                known.setAccessible(true);
                for (Object field : ((java.util.Map<?, ?>) known.get(tagged)).values()) {
                    var one = (org.apache.kafka.common.protocol.types.Field) field;
                    if (random.nextInt(4) > 0) set(message, one.name, one.type, consumers);
                }
            } else {
                set(message, bound.def.name, bound.def.type, consumers);
            }
        }
        if (consumers && message.getClass().getSimpleName().equals("GroupMetadataValue")) {
            field(message, "protocolType").set(message, "consumer");
        }
    }

    private static Field field(Object message, String name) {
        for (Field one : message.getClass().getDeclaredFields()) {
            if (!Modifier.isStatic(one.getModifiers()) && one.getName().equals(name)) {
                one.setAccessible(true);
                return one;
            }
        }
        throw new IllegalArgumentException(message.getClass() + " has no field " + name);
    }

    private void set(Object message, String snake, Type type, boolean consumers) throws Exception {
        String[] words = snake.split("_");
        StringBuilder name = new StringBuilder(words[0]);
        for (int at = 1; at < words.length; at++) {
            name.append(Character.toUpperCase(words[at].charAt(0))).append(words[at].substring(1));
        }
        Field field = field(message, name.toString());
        if (consumers && field.getType() == byte[].class && random.nextInt(4) > 0) {
            if (name.toString().equals("subscription")) {
                field.set(message, protocol(new ConsumerProtocolSubscription()));
                return;
            }
            if (name.toString().equals("assignment")) {
                field.set(message, protocol(new ConsumerProtocolAssignment()));
                return;
            }
        }
        boolean nullable = type.isNullable() || NULLABLE_STRUCTS.contains(name.toString());
        field.set(message, nullable && random.nextInt(4) == 0 ? null : value(field, type, consumers));
    }

    private byte[] protocol(Message message) throws Exception {
        short version = (short) random.nextInt(4);
        fill(message, schema(message, version), false);
        byte[] data = MessageUtil.toVersionPrefixedBytes(version, message);
        return random.nextInt(4) > 0 ? data : java.util.Arrays.copyOf(data, data.length + 3);
    }

    private Object value(Field field, Type type, boolean consumers) throws Exception {
        Class<?> kind = field.getType();
        if (!Collection.class.isAssignableFrom(kind)) return single(kind, type, consumers);
        java.lang.reflect.Type generic = kind == List.class ? field.getGenericType() : kind.getGenericSuperclass();
        Class<?> element = (Class<?>) ((ParameterizedType) generic).getActualTypeArguments()[0];
        Type inner = type.arrayElementType().get();
        Collection<Object> values = kind == List.class ? new ArrayList<>() : made(kind);
        for (int left = random.nextInt(4); left > 0; left--) values.add(single(element, inner, consumers));
        return values;
    }

    @SuppressWarnings("unchecked")
    private static Collection<Object> made(Class<?> kind) throws Exception {
        return (Collection<Object>) kind.getConstructor().newInstance();
    }

    private Object single(Class<?> kind, Type type, boolean consumers) throws Exception {
        if (kind == boolean.class) return random.nextBoolean();
        if (kind == byte.class) return (byte) random.nextInt();
        if (kind == short.class || kind == Short.class) return (short) random.nextInt();
        if (kind == int.class || kind == Integer.class) {
            return type.toString().equals("UINT16") ? random.nextInt(65536) : random.nextInt();
        }
        if (kind == long.class) return random.nextLong();
        if (kind == String.class) return WORDS[random.nextInt(WORDS.length)].repeat(random.nextInt(20) == 0 ? 40 : 1);
        if (kind == Uuid.class) return new Uuid(random.nextLong(), random.nextLong());
        if (kind == byte[].class || kind == ByteBuffer.class) {
            byte[] data = new byte[random.nextInt(20)];
            random.nextBytes(data);
            return kind == byte[].class ? data : ByteBuffer.wrap(data);
        }
        Object struct = kind.getConstructor().newInstance();
        fill(struct, (Schema) type, consumers);
        return struct;
    }
}
