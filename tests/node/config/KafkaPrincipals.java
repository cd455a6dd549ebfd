// Prints what Kafka and the JDK return for lines of stdin, with words in hex and tabs between them:
//   map RULES NAME   "invalid" rules, "none" without a match, "failed", or "name NAME"
//   dn BYTES         the text of a distinguished name in DER

import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Scanner;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

public class KafkaPrincipals {
    static final HexFormat HEX = HexFormat.of();

    static String text(String word) {
        return new String(HEX.parseHex(word), StandardCharsets.UTF_8);
    }

    static String hex(String text) {
        return HEX.formatHex(text.getBytes(StandardCharsets.UTF_8));
    }

    static String map(String rules, String name) {
        SslPrincipalMapper mapper;
        try {
            mapper = SslPrincipalMapper.fromRules(rules);
        } catch (RuntimeException invalid) {
            return "invalid";
        }
        try {
            return "name " + hex(mapper.getName(name));
        } catch (SslPrincipalMapper.NoMatchingRule none) {
            return "none";
        } catch (Exception failed) {
            return "failed";
        }
    }

    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split("\t", -1);
            System.out.println(
                words[0].equals("dn")
                    ? "name " + hex(new X500Principal(HEX.parseHex(words[1])).getName())
                    : map(text(words[1]), text(words[2])));
        }
    }
}
