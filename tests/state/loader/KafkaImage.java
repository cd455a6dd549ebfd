import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.image.writer.ImageWriterOptions;
import org.apache.kafka.image.writer.RecordListWriter;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * Replays metadata records with Kafka's own classes. Input: a file of record values in hex, one a
 * line; a line "image" asks for the checkpoint of the state so far, printed in hex, one record a
 * line, ended by an empty line.
 */
public class KafkaImage {
    public static void main(String[] arguments) throws Exception {
        MetadataImage image = MetadataImage.EMPTY;
        long offset = 0;
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            if (line.equals("image")) {
                print(image);
                continue;
            }
            byte[] value = HexFormat.of().parseHex(line);
            ApiMessageAndVersion record = MetadataRecordSerde.INSTANCE.read(
                new ByteBufferAccessor(java.nio.ByteBuffer.wrap(value)), value.length);
            MetadataDelta delta = new MetadataDelta.Builder().setImage(image).build();
            delta.replay(record.message());
            image = delta.apply(new MetadataProvenance(offset, 1, offset, true));
            offset++;
        }
    }

    private static void print(MetadataImage image) {
        RecordListWriter writer = new RecordListWriter();
        image.write(writer, new ImageWriterOptions.Builder(image).build());
        for (ApiMessageAndVersion record : writer.records()) {
            ObjectSerializationCache cache = new ObjectSerializationCache();
            int size = MetadataRecordSerde.INSTANCE.recordSize(record, cache);
            java.nio.ByteBuffer buffer = java.nio.ByteBuffer.allocate(size);
            MetadataRecordSerde.INSTANCE.write(record, cache, new ByteBufferAccessor(buffer));
            System.out.println(HexFormat.of().formatHex(buffer.array()));
        }
        System.out.println();
    }
}
