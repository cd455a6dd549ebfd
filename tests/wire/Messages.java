// Reads messages with Kafka's own classes and writes them again:
//   java -cp 'JARS/*' Messages.java FILE
//
// FILE holds one message a line: API_KEY VERSION KIND HEX, where KIND is "request", "response" or
// "header" (of a request of that api and version).
//
// Prints first "api KEY OLDEST LATEST LISTENERS" for every api, LISTENERS apart by commas, LATEST
// of the stable versions; and "headers KEY VERSION REQUEST RESPONSE" for each of its versions.
// Then one line a message: "message HEX JSON", bytes as Kafka writes them and content as it says
// it; or "failed WORDS".

import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

public class Messages {
    public static void main(String[] arguments) throws Exception {
        for (ApiKeys api : ApiKeys.values()) {
            tell(api);
        }
        List<String> lines = Files.readAllLines(Path.of(arguments[0]));
        for (String line : lines) {
            String[] words = line.split(" ", -1);
            try {
                System.out.println(echo(words));
            } catch (RuntimeException error) {
                System.out.println("failed " + error);
            }
        }
    }

    static void tell(ApiKeys api) {
        String listeners = api.messageType.listeners().stream()
            .map(one -> one.name()).sorted().collect(Collectors.joining(","));
        System.out.println("api " + api.id + " " + api.oldestVersion() + " "
            + api.latestVersion(false) + " " + listeners);
        for (short version : api.allVersions()) {
            System.out.println("headers " + api.id + " " + version + " "
                + api.requestHeaderVersion(version) + " " + api.responseHeaderVersion(version));
        }
    }

    static String echo(String[] words) throws Exception {
        short key = Short.parseShort(words[0]);
        short version = Short.parseShort(words[1]);
        ByteBuffer data = ByteBuffer.wrap(HexFormat.of().parseHex(words[3]));
        ApiMessage message;
        switch (words[2]) {
            case "header":
                message = new RequestHeaderData();
                version = ApiKeys.forId(key).requestHeaderVersion(version);
                break;
            case "request":
                message = ApiMessageType.fromApiKey(key).newRequest();
                break;
            default:
                message = ApiMessageType.fromApiKey(key).newResponse();
        }
        message.read(new ByteBufferAccessor(data), version);
        if (data.hasRemaining()) {
            return "failed: " + data.remaining() + " bytes are left";
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer out = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(out), cache, version);
        Class<?> kind = message.getClass();
        Method json = Class.forName(kind.getName() + "JsonConverter")
            .getMethod("write", kind, short.class, boolean.class);
        return "message " + HexFormat.of().formatHex(out.array()) + " "
            + json.invoke(null, message, version, false);  // of records the size alone
    }
}
